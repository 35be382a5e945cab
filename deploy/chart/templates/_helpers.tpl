{{- define "sentinel.image" -}}
{{- $why := "image.repository: where you have pushed what `make image` makes, like registry.example.com/gpu/sentinel" -}}
{{- $repository := required $why .Values.image.repository -}}
{{- if .Values.image.digest -}}
{{ $repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The whole document of what values say of it. */}}
{{- define "sentinel.settings" -}}
apiVersion: sentinel.dev/v1alpha1
kind: Settings
stateDir: /var/lib/sentinel
{{ toYaml . }}
{{- end -}}
