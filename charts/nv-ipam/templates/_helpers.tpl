{{/* Name of the chart, cut to what a label may hold. */}}
{{- define "nv-ipam.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* Prefix of all objects. A release called nv-ipam gives the names that the manifests of nv-ipam have.
     40 characters leave room for the longest suffix in a name that may have 63, as a Service's. */}}
{{- define "nv-ipam.fullname" -}}
{{- $name := include "nv-ipam.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end }}

{{/* Names of what belongs to the operator and to the agent. */}}
{{- define "nv-ipam.operator" -}}{{ include "nv-ipam.fullname" . }}-controller{{- end }}
{{- define "nv-ipam.agent" -}}{{ include "nv-ipam.fullname" . }}-node{{- end }}
{{- define "nv-ipam.operatorAccount" -}}
{{- default (include "nv-ipam.operator" .) .Values.operator.serviceAccount.name -}}
{{- end }}
{{- define "nv-ipam.agentAccount" -}}
{{- default (include "nv-ipam.agent" .) .Values.agent.serviceAccount.name -}}
{{- end }}

{{/* The namespace of the operator and the agents. */}}
{{- define "nv-ipam.namespace" -}}{{ default .Release.Namespace .Values.namespaceOverride }}{{- end }}

{{/* Where the pools live, and where the Lease of the election. */}}
{{- define "nv-ipam.poolsNamespace" -}}{{ default (include "nv-ipam.namespace" .) .Values.poolsNamespace }}{{- end }}
{{- define "nv-ipam.electNamespace" -}}{{ default (include "nv-ipam.namespace" .) .Values.operator.leaderElectNamespace }}{{- end }}

{{/* Whether there is a webhook: not empty means yes. Without anybody who makes certificates there is one only if
     both were brought along. */}}
{{- define "nv-ipam.webhook" -}}
{{- if or (ne .Values.webhook.certificates "none") .Values.webhook.caBundle -}}true{{- end -}}
{{- end }}
{{- define "nv-ipam.webhookService" -}}{{ include "nv-ipam.fullname" . }}-webhook{{- end }}
{{- define "nv-ipam.webhookConfiguration" -}}{{ include "nv-ipam.fullname" . }}-validating-webhook{{- end }}
{{/* Each maker of certificates has a Secret of its own, because none writes the Secret of another. */}}
{{- define "nv-ipam.webhookSecret" -}}
{{- $makers := dict "cert-manager" "webhook-cert-manager" "openshift" "webhook-openshift" -}}
{{- $name := get $makers .Values.webhook.certificates | default "webhook-server-cert" -}}
{{- default (printf "%s-%s" (include "nv-ipam.fullname" .) $name) .Values.webhook.secretName -}}
{{- end }}

{{/* What selects the pods of a component. Takes the root and the component. */}}
{{- define "nv-ipam.selector" -}}
{{- toYaml (dict
  "app.kubernetes.io/name" (include "nv-ipam.name" .root)
  "app.kubernetes.io/instance" .root.Release.Name
  "app.kubernetes.io/component" .component) -}}
{{- end }}

{{/* Labels of all objects, without the component. */}}
{{- define "nv-ipam.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-")
  "app.kubernetes.io/name" (include "nv-ipam.name" .)
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/part-of" "nv-ipam"
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service -}}
{{- toYaml (merge $own (default dict .Values.commonLabels)) -}}
{{- end }}

{{/* The metadata of an object. Takes the root and a name. Optional: a namespace, a component, labels, annotations. */}}
{{- define "nv-ipam.metadata" -}}
metadata:
  name: {{ .name }}
  {{- with .namespace }}
  namespace: {{ . }}
  {{- end }}
  {{- $labels := include "nv-ipam.labels" .root | fromYaml }}
  {{- with .component }}
  {{- $_ := set $labels "app.kubernetes.io/component" . }}
  {{- end }}
  labels: {{- toYaml (merge $labels (default dict .labels)) | nindent 4 }}
  {{- with merge dict (default dict .annotations) (default dict .root.Values.commonAnnotations) }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
{{- end }}

{{/* The metadata of a pod template. Takes the root, the component and the name of its main container. */}}
{{- define "nv-ipam.podMetadata" -}}
{{- $values := default dict (index .root.Values .component) -}}
{{- $selector := include "nv-ipam.selector" . | fromYaml -}}
metadata:
  labels: {{- toYaml (merge $selector (default dict $values.podLabels) (default dict .root.Values.commonLabels)) | nindent 4 }}
  annotations:
    {{- $container := dict "kubectl.kubernetes.io/default-container" .container }}
    {{- toYaml (merge dict (default dict $values.podAnnotations) $container (default dict .root.Values.commonAnnotations)) | nindent 4 }}
{{- end }}

{{/* Whether the cluster is OpenShift: not empty means yes. */}}
{{- define "nv-ipam.openshift" -}}
{{- $enabled := toString .Values.openshift.enabled -}}
{{- if eq $enabled "auto" -}}
{{- if or (eq .Values.webhook.certificates "openshift") (.Capabilities.APIVersions.Has "security.openshift.io/v1") -}}true{{- end -}}
{{- else if eq $enabled "true" -}}true{{- end -}}
{{- end }}

{{/* A security context for a pod that restricted-v2 admits: this constraint assigns the user and the groups, and rejects fixed ones.
     Takes the root and the context. */}}
{{- define "nv-ipam.restricted" -}}
{{- if include "nv-ipam.openshift" .root -}}
{{- toYaml (omit (default dict .context) "runAsUser" "runAsGroup" "fsGroup") -}}
{{- else -}}
{{- toYaml (default dict .context) -}}
{{- end -}}
{{- end }}

{{/* The agent's security contexts. The runtime of a privileged container drops no capability and applies no profile. SELinux of
     OpenShift denies container_t the folders of the node; spc_t may write them. */}}
{{- define "nv-ipam.agentPodSecurity" -}}
{{- $context := default dict .Values.agent.podSecurityContext -}}
{{- toYaml (ternary (omit $context "seccompProfile") $context .Values.agent.privileged) -}}
{{- end }}
{{- define "nv-ipam.agentSecurity" -}}
{{- $context := deepCopy (default dict .Values.agent.securityContext) -}}
{{- if .Values.agent.privileged -}}
{{- $context = set (omit $context "allowPrivilegeEscalation" "capabilities" "seccompProfile") "privileged" true -}}
{{- else if include "nv-ipam.openshift" . -}}
{{- if not (or $context.seLinuxOptions (default dict .Values.agent.podSecurityContext).seLinuxOptions) -}}
{{- $_ := set $context "seLinuxOptions" (dict "type" "spc_t") -}}
{{- end -}}
{{- end -}}
{{- toYaml $context -}}
{{- end }}

{{/* The node's folder of CNI plugins. */}}
{{- define "nv-ipam.cniBinDir" -}}
{{- default (ternary "/var/lib/cni/bin" "/opt/cni/bin" (eq (include "nv-ipam.openshift" .) "true")) .Values.agent.cni.binDir -}}
{{- end }}

{{/* The image of a component and when it is pulled. Takes the root and the component, whose own fields come first: its tag or digest
     replaces both of the common image. */}}
{{- define "nv-ipam.image" -}}
{{- $common := .root.Values.image -}}
{{- $own := default dict (index .root.Values .component).image -}}
{{- $registry := coalesce $own.registry (default dict .root.Values.global).imageRegistry $common.registry -}}
{{- $tag := ternary $own.tag $common.tag (or (not (empty $own.tag)) (not (empty $own.digest))) -}}
{{- $digest := ternary $own.digest $common.digest (or (not (empty $own.tag)) (not (empty $own.digest)) (not (empty $own.repository))) -}}
{{- if hasPrefix "sha256:" (toString $tag) -}}
{{- $digest = $tag -}}
{{- $tag = "" -}}
{{- end -}}
{{- if not $digest -}}{{- $tag = default .root.Chart.AppVersion $tag -}}{{- end -}}
image: {{ with $registry }}{{ . }}/{{ end }}{{ default $common.repository $own.repository }}{{ with $tag }}:{{ . }}{{ end }}{{ with $digest }}@{{ . }}{{ end }}
imagePullPolicy: {{ default $common.pullPolicy $own.pullPolicy }}
{{- end }}

{{/* Secrets to pull images with, each once; those of a parent chart may be names alone. */}}
{{- define "nv-ipam.pullSecrets" -}}
{{- $secrets := list -}}
{{- range concat (default list .Values.imagePullSecrets) (default list (default dict .Values.global).imagePullSecrets) -}}
{{- $secrets = append $secrets (ternary (dict "name" .) . (kindIs "string" .)) -}}
{{- end -}}
{{- with uniq $secrets -}}
imagePullSecrets: {{- toYaml . | nindent 0 }}
{{- end -}}
{{- end }}

{{/* The port of an address such as ":8080" or "[::1]:8080"; 0 when the listener is off. */}}
{{- define "nv-ipam.port" -}}{{ splitList ":" . | last }}{{- end }}

{{/* The flags that both daemons have. Takes a component's values. */}}
{{- define "nv-ipam.commonArgs" -}}
- --health-probe-bind-address={{ .healthProbeBindAddress }}
- --metrics-bind-address={{ .metricsBindAddress }}
- --logging-format={{ .logging.format }}
- --v={{ int .logging.verbosity }}
{{- with .logging.vmodule }}
- --vmodule={{ . }}
{{- end }}
{{- with .logging.flushFrequency }}
- --log-flush-frequency={{ . }}
{{- end }}
{{- with .logging.infoBufferSize }}
- --log-{{ $.logging.format }}-info-buffer-size={{ . }}
{{- end }}
{{- if .logging.splitStream }}
- --log-{{ .logging.format }}-split-stream=true
{{- end }}
{{- with .featureGates }}
{{- $gates := list }}
{{- range $gate, $on := . }}{{ $gates = append $gates (printf "%s=%t" $gate $on) }}{{ end }}
- --feature-gates={{ join "," (sortAlpha $gates) }}
{{- end }}
{{- end }}

{{/* Probes of both daemons. Takes a component's values. */}}
{{- define "nv-ipam.probes" -}}
{{- if ne .healthProbeBindAddress "0" }}
{{- with .startupProbe }}
startupProbe:
  httpGet: {path: /healthz, port: probes}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .livenessProbe }}
livenessProbe:
  httpGet: {path: /healthz, port: probes}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .readinessProbe }}
readinessProbe:
  httpGet: {path: /readyz, port: probes}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{/* Ports of both daemons. Takes a component's values. */}}
{{- define "nv-ipam.ports" -}}
{{- if ne .healthProbeBindAddress "0" }}
- {name: probes, containerPort: {{ include "nv-ipam.port" .healthProbeBindAddress }}}
{{- end }}
{{- if ne .metricsBindAddress "0" }}
- {name: metrics, containerPort: {{ include "nv-ipam.port" .metricsBindAddress }}}
{{- end }}
{{- end }}

{{/* Folders of the node that the agent writes to, each once: store, socket, the plugin and its configuration. */}}
{{- define "nv-ipam.hostFolders" -}}
{{- $folders := list (dir .Values.agent.storeFile) -}}
{{- if hasPrefix "unix://" .Values.agent.bindAddress -}}
{{- $folders = append $folders (dir (trimPrefix "unix://" .Values.agent.bindAddress)) -}}
{{- end -}}
{{- if not .Values.agent.cni.skipBinaryCopy -}}{{- $folders = append $folders (include "nv-ipam.cniBinDir" .) -}}{{- end -}}
{{- if not .Values.agent.cni.skipConfigCreation -}}{{- $folders = append $folders .Values.agent.cni.confDir -}}{{- end -}}
{{- with .Values.agent.containerRuntimeEndpoint -}}{{- $folders = append $folders (dir (trimPrefix "unix://" .)) -}}{{- end -}}
{{- $folders | uniq | toJson -}}
{{- end }}
