{{/* What the schema of the values cannot say. All mistakes at once, each with what would be right. */}}
{{- define "nv-ipam.validate" -}}
{{- $mistakes := list -}}
{{- with .Values -}}
{{- if and (gt (int .operator.replicas) 1) (not .operator.leaderElect) -}}
{{- $mistakes = append $mistakes (printf "operator.replicas is %d with operator.leaderElect off: several operators would write at once; turn leaderElect on, or set replicas to 1" (int .operator.replicas)) -}}
{{- end -}}
{{- if and .webhook.caBundle (ne .webhook.certificates "none") -}}
{{- $mistakes = append $mistakes (printf "webhook.caBundle is given, but webhook.certificates is %q, which puts a bundle of its own there; leave caBundle empty, or set certificates to \"none\" and bring the Secret %s" .webhook.certificates (include "nv-ipam.webhookSecret" $)) -}}
{{- end -}}
{{- if and .webhook.secretName (eq .webhook.certificates "none") (not .webhook.caBundle) -}}
{{- $mistakes = append $mistakes (printf "webhook.secretName is %q, but with webhook.certificates \"none\" and no webhook.caBundle there is no webhook; give the CA's PEM, in base64, as webhook.caBundle" .webhook.secretName) -}}
{{- end -}}
{{- range $component := list "operator" "agent" -}}
{{- $logging := (index $.Values $component).logging -}}
{{- $gates := default dict (index $.Values $component).featureGates -}}
{{- if and $logging.vmodule (eq $logging.format "json") -}}
{{- $mistakes = append $mistakes (printf "%s.logging.vmodule works with %s.logging.format \"text\" only; leave vmodule empty or log text" $component $component) -}}
{{- end -}}
{{- $alpha := or (get $gates "LoggingAlphaOptions") (get $gates "AllAlpha") -}}
{{- if and (or $logging.jsonSplitStream $logging.jsonInfoBufferSize) (not $alpha) -}}
{{- $mistakes = append $mistakes (printf "%s.logging.jsonSplitStream and jsonInfoBufferSize are alpha; add %s.featureGates.LoggingAlphaOptions: true" $component $component) -}}
{{- end -}}
{{- end -}}
{{- if and (not .agent.cni.skipConfigCreation) (ne .agent.cni.daemonSocket .agent.bindAddress) (hasPrefix "unix://" .agent.bindAddress) -}}
{{- $mistakes = append $mistakes (printf "agent.cni.daemonSocket is %q, but the agent listens on %q: the plugin would not find it; write the same address in both" .agent.cni.daemonSocket .agent.bindAddress) -}}
{{- end -}}
{{- end -}}
{{- if $mistakes -}}
{{- fail (printf "\n* %s" (join "\n* " $mistakes)) -}}
{{- end -}}
{{- end }}
