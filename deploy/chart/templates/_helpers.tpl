{{- define "sentinel.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The whole document of what a part of it says. */}}
{{- define "sentinel.settings" -}}
apiVersion: sentinel.dev/v1alpha1
kind: Settings
stateDir: /var/lib/sentinel
{{ toYaml . }}
{{- end -}}
