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
{{- if and (.Values.controller.certificates | default dict).secret (not $settings.certificates) -}}
{{- $files := dict "certFile" "/etc/sentinel-tls/tls.crt" "keyFile" "/etc/sentinel-tls/tls.key" "caFile" "/etc/sentinel-tls/ca.crt" -}}
{{- $settings = set $settings "certificates" $files -}}
{{- end -}}
{{- include "sentinel.settings" (dict "settings" $settings) -}}
{{- end -}}

{{- define "sentinel.labels" -}}
{{- $own := dict "app.kubernetes.io/name" "sentinel" "app.kubernetes.io/component" .part -}}
{{- toYaml (merge $own (.labels | default dict)) -}}
{{- end -}}

{{/* An agent holds NVIDIA's driver open. Where that is changed, the GPU operator or a person says so by these labels. */}}
{{- define "sentinel.stays" -}}
- {key: sentinel.dev/agent, operator: NotIn, values: ["off"]}
- {key: nvidia.com/gpu.deploy.client, operator: NotIn, values: [paused-for-driver-upgrade, paused-for-mig-change]}
- {key: nvidia.com/gpu.deploy.dcgm-exporter, operator: NotIn, values: [paused-for-driver-upgrade, paused-for-mig-change]}
{{- end -}}

{{/* What values ask, on nodes whose driver is not being changed: in each term, for one of them suffices. */}}
{{- define "sentinel.agentAffinity" -}}
{{- $affinity := deepCopy (.Values.agent.affinity | default dict) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $asked := dig $required "nodeSelectorTerms" (list dict) $node -}}
{{- $stays := include "sentinel.stays" . | fromYamlArray -}}
{{- $terms := list -}}
{{- range $asked -}}
{{- $terms = append $terms (set (deepCopy .) "matchExpressions" (concat (.matchExpressions | default list) $stays)) -}}
{{- end -}}
{{- $_ := set $affinity "nodeAffinity" (set $node $required (dict "nodeSelectorTerms" $terms)) -}}
{{- toYaml $affinity -}}
{{- end -}}

{{/* What values ask, and no two controllers on one node. */}}
{{- define "sentinel.controllerAffinity" -}}
{{- $affinity := deepCopy (.Values.controller.affinity | default dict) -}}
{{- $required := "requiredDuringSchedulingIgnoredDuringExecution" -}}
{{- $pods := $affinity.podAntiAffinity | default dict -}}
{{- $labels := include "sentinel.labels" (dict "part" "controller") | fromYaml -}}
{{- $own := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels" $labels) -}}
{{- $_ := set $affinity "podAntiAffinity" (set $pods $required (append (get $pods $required | default list) $own)) -}}
{{- toYaml $affinity -}}
{{- end -}}

{{- /* "" only where it is said: values of an older chart (--reuse-values) do not have it. */ -}}
{{- define "sentinel.privileged" -}}
{{- ne (toString .Values.agent.privileged) "false" | ternary "true" "" -}}
{{- end }}
