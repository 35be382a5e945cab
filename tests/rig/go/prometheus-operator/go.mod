module sentinel.dev/testrig/prometheus-operator

go 1.24.0

require github.com/prometheus-operator/prometheus-operator v0.86.1
