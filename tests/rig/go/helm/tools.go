//go:build tools

// Package tools names the program that installs the chart, so that go.mod pins it.
package tools

import (
	_ "helm.sh/helm/v3/cmd/helm"
)
