//go:build tools

// Package tools is a module of its own: kwok is built with older libraries than Kubernetes.
package tools

import _ "sigs.k8s.io/kwok/cmd/kwok"
