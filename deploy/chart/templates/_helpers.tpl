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
{{- $fixed := dict "apiVersion" "sentinel.dev/v1alpha1" "kind" "Settings" "stateDir" "/var/lib/sentinel" -}}
{{- toYaml (merge $fixed (deepCopy (.settings | default dict))) -}}
{{- end -}}

{{- define "sentinel.controllerSettings" -}}
{{- $settings := merge (dict "listen" "0.0.0.0:9810") (deepCopy (.Values.controller.settings | default dict)) -}}
{{- include "sentinel.settings" (dict "settings" $settings) -}}
{{- end -}}

{{- define "sentinel.labels" -}}
{{- $own := dict "app.kubernetes.io/name" "sentinel" "app.kubernetes.io/component" .part -}}
{{- toYaml (merge $own (.labels | default dict)) -}}
{{- end -}}
