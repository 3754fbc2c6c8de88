{{/* What the schema of the values cannot say, or not in words. All mistakes at once, each with what would be right. */}}
{{- define "nv-ipam.validate" -}}
{{- $mistakes := list -}}
{{- $port := "(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})" -}}
{{- /* A name in a path that is neither "." nor "..". */}}
{{- $name := "/([^/.][^/]*|[.][^/.][^/]*|[.]{2}[^/]+)" -}}
{{- $forms := dict
  "name" (list `^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)?$` "is no name of a namespace or prefix; it takes up to 63 of a-z, 0-9 and '-', with '-' neither first nor last")
  "object" (list `^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$` "is no name of an object; it takes up to 253 of a-z, 0-9, '-' and '.'")
  "path" (list (printf `^(%s)+$` $name) "is no absolute path; write it from the root, without \".\" and \"..\", as in \"/var/lib/cni\"")
  "folder" (list (printf `^(%s)*$` $name) "is no absolute path; write it from the root, without \".\" and \"..\", as in \"/var/lib/cni\"")
  "file" (list (printf `^(%s){2,}$` $name) "is no file in a folder of its own; write it from the root, without \".\" and \"..\", as in \"/var/lib/cni/nv-ipam/store\"")
  "duration" (list `^(0|([0-9]+([.][0-9]+)?(h|m|s|ms))+)?$` "is no duration; write numbers with h, m or s, as in \"1m30s\"")
  "interval" (list `^([0-9]+([.][0-9]+)?(h|m|s|ms))+$` "is no duration; write numbers with h, m or s, as in \"1m30s\"")
  "listener" (list (printf `^(0|([^ /:]*|\[[0-9a-fA-F:.]+\]):%s)$` $port) "is no address to listen on; write \":8080\", \"127.0.0.1:8080\", or \"0\" for none")
  "webhook" (list (printf `^([^ /:]*|\[[0-9a-fA-F:.]+\]):%s$` $port) "is no address to listen on; write \":9443\"")
  "agent" (list (printf `^(unix://(%s){2,}|tcp://([^ /:]+|\[[0-9a-fA-F:.]+\]):%s)$` $name $port) "is no address of the agent; write unix:///FOLDER/NAME or tcp://IP:PORT")
  "runtime" (list (printf `^(unix://(%s){2,})?$` $name) "is no CRI socket in a folder of its own; write unix:///FOLDER/NAME, as in \"unix:///run/containerd/containerd.sock\"")
  "size" (list `^([0-9]+(k|K|M|G|Ki|Mi|Gi)?)?$` "is no size; write a number, as in \"64Ki\"")
  "bundle" (list `^(LS0tLS[A-Za-z0-9+/=]+)?$` "is no PEM in base64; write what `base64 -w0 ca.crt` prints")
  "registry" (list `^([^ @:/]+(:[0-9]+)?(/[^ @:/]+)*)?$` "is no registry; write it without scheme and without \"/\" at its end, as in \"registry.example.com:5000\"")
  "digest" (list `^(sha256:[0-9a-f]{64})?$` "is no digest; write \"sha256:\" and 64 of 0-9 and a-f")
  "image" (list `^[^ @:]+(:[0-9]+/[^ @:]+)?$` "is no image repository; write it without tag, as in \"registry.example.com/nv-ipam\"")
-}}
{{- range $check := list
  (list "name" "nameOverride") (list "name" "fullnameOverride") (list "name" "namespaceOverride") (list "name" "poolsNamespace") (list "name" "monitoring.dashboard.namespace")
  (list "image" "image.repository") (list "registry" "image.registry") (list "digest" "image.digest")
  (list "object" "webhook.secretName") (list "path" "webhook.certDir") (list "webhook" "webhook.bindAddress") (list "interval" "webhook.drain")
  (list "bundle" "webhook.caBundle")
  (list "interval" "webhook.certManager.duration") (list "interval" "webhook.certManager.renewBefore")
  (list "name" "operator.leaderElectNamespace") (list "duration" "operator.releasedBlockGrace")
  (list "listener" "operator.healthProbeBindAddress") (list "listener" "operator.metricsBindAddress")
  (list "duration" "operator.logging.flushFrequency") (list "size" "operator.logging.infoBufferSize")
  (list "object" "operator.serviceAccount.name")
  (list "agent" "agent.bindAddress") (list "file" "agent.storeFile")
  (list "listener" "agent.healthProbeBindAddress") (list "listener" "agent.metricsBindAddress")
  (list "duration" "agent.logging.flushFrequency") (list "size" "agent.logging.infoBufferSize")
  (list "object" "agent.serviceAccount.name")
  (list "interval" "agent.staleIpCheck.interval") (list "interval" "agent.releasedIpCooldown")
  (list "duration" "agent.offlineLimit") (list "duration" "agent.replacedMachineGrace")
  (list "runtime" "agent.containerRuntimeEndpoint")
  (list "folder" "agent.bootIdFile") (list "folder" "agent.systemUuidFile")
  (list "folder" "agent.cni.binDir") (list "path" "agent.cni.confDir") (list "path" "agent.cni.binFile")
  (list "path" "agent.cni.logFile") (list "agent" "agent.cni.daemonSocket")
-}}
{{- $form := index $forms (first $check) -}}
{{- $value := $.Values -}}
{{- range splitList "." (last $check) -}}{{- $value = index $value . -}}{{- end -}}
{{- if not (regexMatch (first $form) $value) -}}
{{- $mistakes = append $mistakes (printf "%s %q %s" (last $check) $value (last $form)) -}}
{{- end -}}
{{- end -}}
{{- with .Values -}}
{{- if and (gt (int .operator.replicas) 1) (not .operator.leaderElect) -}}
{{- $mistakes = append $mistakes (printf "operator.replicas is %d with operator.leaderElect off: several operators would write at once; turn leaderElect on, or set replicas to 1" (int .operator.replicas)) -}}
{{- end -}}
{{- range $key := list "helm.sh/chart" "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/part-of" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" -}}
{{- if hasKey (default dict $.Values.commonLabels) $key -}}
{{- $mistakes = append $mistakes (printf "commonLabels has %q, which the chart sets itself; leave it out" $key) -}}
{{- end -}}
{{- end -}}
{{- if and .image.digest (hasPrefix "sha256:" .image.tag) -}}
{{- $mistakes = append $mistakes "image.tag and image.digest are both digests; leave image.tag empty" -}}
{{- end -}}
{{- range $component := list "operator" "agent" -}}
{{- range $field := list "registry" "digest" "repository" -}}
{{- $form := index $forms (ternary "image" $field (eq $field "repository")) -}}
{{- $value := default "" (index (default dict (index $.Values $component).image) $field) -}}
{{- if and $value (not (regexMatch (first $form) $value)) -}}
{{- $mistakes = append $mistakes (printf "%s.image.%s %q %s" $component $field $value (last $form)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and .operator.hostNetwork .agent.hostNetwork -}}
{{- $webhook := ternary (list "webhook.bindAddress" .webhook.bindAddress) (list "" "0") (eq (include "nv-ipam.webhook" $) "true") -}}
{{- range $of := list (list "operator.healthProbeBindAddress" .operator.healthProbeBindAddress) (list "operator.metricsBindAddress" .operator.metricsBindAddress) $webhook -}}
{{- range $other := list "healthProbeBindAddress" "metricsBindAddress" -}}
{{- $address := index $.Values.agent $other -}}
{{- if and (ne (last $of) "0") (ne $address "0") (eq (include "nv-ipam.port" (last $of)) (include "nv-ipam.port" $address)) -}}
{{- $mistakes = append $mistakes (printf "%s %q and agent.%s %q are one port of the node, because hostNetwork is on for both; give each its own" (first $of) (last $of) $other $address) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if hasPrefix "tcp://" .agent.bindAddress -}}
{{- if not (regexMatch `^tcp://(127[.]|localhost:|\[::1\]:)` .agent.bindAddress) -}}
{{- $mistakes = append $mistakes (printf "agent.bindAddress %q lets every process that reaches it allocate and free addresses; write unix:///FOLDER/NAME, or for tests tcp://127.0.0.1:PORT" .agent.bindAddress) -}}
{{- else if not .agent.hostNetwork -}}
{{- $mistakes = append $mistakes (printf "agent.bindAddress %q is the loopback of the pod, which the plugin on the node does not reach; write unix:///FOLDER/NAME, or turn agent.hostNetwork on" .agent.bindAddress) -}}
{{- end -}}
{{- end -}}
{{- if and .monitoring.serviceMonitor.create .monitoring.podMonitor.create -}}
{{- $mistakes = append $mistakes "monitoring.serviceMonitor and monitoring.podMonitor would scrape each pod twice; turn one off" -}}
{{- end -}}
{{- if or .monitoring.service.create .monitoring.serviceMonitor.create .monitoring.podMonitor.create -}}
{{- if and (eq .operator.metricsBindAddress "0") (eq .agent.metricsBindAddress "0") -}}
{{- $mistakes = append $mistakes "monitoring has a Service or monitor, but operator.metricsBindAddress and agent.metricsBindAddress are \"0\": there is nothing to scrape; write \":8080\"" -}}
{{- end -}}
{{- range $component := list "operator" "agent" -}}
{{- $metrics := (index $.Values $component).metricsBindAddress -}}
{{- if regexMatch `^(127[.]|localhost:|\[::1\]:)` $metrics -}}
{{- $mistakes = append $mistakes (printf "%s.metricsBindAddress %q listens where no Prometheus can reach it; write \":8080\", or \"0\" for none" $component $metrics) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $alerts := list -}}
{{- range ($.Files.Get "files/alerts.yaml" | fromYaml).rules -}}{{- $alerts = append $alerts .alert -}}{{- end -}}
{{- range default list .monitoring.rules.disabled -}}
{{- if not (has . $alerts) -}}
{{- $mistakes = append $mistakes (printf "monitoring.rules.disabled has %q, which is no alert; the alerts are %s" . (join ", " $alerts)) -}}
{{- end -}}
{{- end -}}
{{- if and .networkPolicy.create .networkPolicy.egress.restrict (not .networkPolicy.egress.apiServerPorts) -}}
{{- $mistakes = append $mistakes "networkPolicy.egress.restrict is on without networkPolicy.egress.apiServerPorts: the daemons could not reach the API server; write its ports, as in [443, 6443]" -}}
{{- end -}}
{{- if and .networkPolicy.create .operator.hostNetwork -}}
{{- $mistakes = append $mistakes "networkPolicy.create is on with operator.hostNetwork, but no NetworkPolicy applies to pods on the network of their node; turn one off" -}}
{{- end -}}
{{- $strategy := default dict .operator.strategy -}}
{{- if and (not .operator.leaderElect) $strategy (ne (toString $strategy.type) "Recreate") -}}
{{- $mistakes = append $mistakes (printf "operator.strategy.type is %q with operator.leaderElect off: two operators would write at once during an upgrade; turn leaderElect on, or set the type to \"Recreate\"" (default "RollingUpdate" $strategy.type)) -}}
{{- end -}}
{{- if and (eq (toString $strategy.type) "Recreate") $strategy.rollingUpdate -}}
{{- $mistakes = append $mistakes "operator.strategy has rollingUpdate with the type \"Recreate\"; leave rollingUpdate out" -}}
{{- end -}}
{{- with .operator.podDisruptionBudget -}}
{{- $least := toString .minAvailable -}}
{{- $most := toString .maxUnavailable -}}
{{- if and (ne $least "") (ne $most "") -}}
{{- $mistakes = append $mistakes "operator.podDisruptionBudget has minAvailable and maxUnavailable, which Kubernetes rejects; give one of them" -}}
{{- end -}}
{{- if and .create (or (eq $most "0") (eq $most "0%") (eq $least "100%") (and (regexMatch `^[0-9]+$` $least) (ge (int $least) (int $.Values.operator.replicas)) (gt (int $.Values.operator.replicas) 1))) -}}
{{- $mistakes = append $mistakes (printf "operator.podDisruptionBudget lets no pod of %d be evicted: no node of theirs could be drained; write a lower minAvailable or a higher maxUnavailable" (int $.Values.operator.replicas)) -}}
{{- end -}}
{{- end -}}
{{- if and .resourceQuota.create (not (or .operator.priorityClassName .agent.priorityClassName)) -}}
{{- $mistakes = append $mistakes "resourceQuota.create is on, but neither the operator nor the agent has a priorityClassName; turn it off" -}}
{{- end -}}
{{- if eq (include "nv-ipam.operatorAccount" $) (include "nv-ipam.agentAccount" $) -}}
{{- $mistakes = append $mistakes (printf "operator.serviceAccount.name and agent.serviceAccount.name are both %q: what the admission policy forbids an agent would be forbidden to the operator too; give each an account of its own" (include "nv-ipam.agentAccount" $)) -}}
{{- end -}}
{{- if include "nv-ipam.webhook" $ -}}
{{- if regexMatch `^(127[.]|localhost:|\[::1\]:)` .webhook.bindAddress -}}
{{- $mistakes = append $mistakes (printf "webhook.bindAddress %q listens where no API server can reach it; write \":9443\"" .webhook.bindAddress) -}}
{{- end -}}
{{- range $other := list "healthProbeBindAddress" "metricsBindAddress" -}}
{{- $address := index $.Values.operator $other -}}
{{- if and (ne $address "0") (eq (include "nv-ipam.port" $address) (include "nv-ipam.port" $.Values.webhook.bindAddress)) -}}
{{- $mistakes = append $mistakes (printf "webhook.bindAddress %q and operator.%s %q are one port; give each its own" $.Values.webhook.bindAddress $other $address) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $component := list "operator" "agent" -}}
{{- range $label := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" -}}
{{- if hasKey (default dict (index $.Values $component).podLabels) $label -}}
{{- $mistakes = append $mistakes (printf "%s.podLabels has %q, by which the chart finds its pods; leave it out" $component $label) -}}
{{- end -}}
{{- end -}}
{{- $probes := (index $.Values $component).healthProbeBindAddress -}}
{{- $metrics := (index $.Values $component).metricsBindAddress -}}
{{- if regexMatch `^(127[.]|localhost:|\[::1\]:)` $probes -}}
{{- $mistakes = append $mistakes (printf "%s.healthProbeBindAddress %q listens where no kubelet can reach it: the pod would never be ready; write \":8081\"" $component $probes) -}}
{{- end -}}
{{- if and (ne $probes "0") (ne $metrics "0") (eq (include "nv-ipam.port" $probes) (include "nv-ipam.port" $metrics)) -}}
{{- $mistakes = append $mistakes (printf "%s.healthProbeBindAddress %q and %s.metricsBindAddress %q are one port; give each its own" $component $probes $component $metrics) -}}
{{- end -}}
{{- end -}}
{{- $drain := include "nv-ipam.seconds" .webhook.drain -}}
{{- /* Null is what Kubernetes makes 30 of. */}}
{{- $killed := int64 (default 30 .operator.terminationGracePeriodSeconds) -}}
{{- /* Reviews that are under way when the drain is over have 5 s more. Of one that is too long to reckon nothing comes. */}}
{{- $spared := regexMatch (first (index $forms "interval")) .webhook.drain | ternary (default 999999 $drain | int64 | add 5) 0 -}}
{{- if and (include "nv-ipam.webhook" $) (gt (int64 $spared) $killed) -}}
{{- $mistakes = append $mistakes (printf "webhook.drain %q and the 5 s in which it finishes are longer than operator.terminationGracePeriodSeconds %d: the operator would be killed while it still takes reviews; write a shorter drain or more seconds" .webhook.drain $killed) -}}
{{- end -}}
{{- if eq .webhook.certificates "cert-manager" -}}
{{- $duration := include "nv-ipam.seconds" .webhook.certManager.duration -}}
{{- $renewBefore := include "nv-ipam.seconds" .webhook.certManager.renewBefore -}}
{{- if and $duration $renewBefore (ge (int64 $renewBefore) (int64 $duration)) -}}
{{- $mistakes = append $mistakes (printf "webhook.certManager.renewBefore %q is not shorter than webhook.certManager.duration %q, which cert-manager refuses; write a third of the duration" .webhook.certManager.renewBefore .webhook.certManager.duration) -}}
{{- end -}}
{{- if and $duration (lt (int64 $duration) 3600) -}}
{{- $mistakes = append $mistakes (printf "webhook.certManager.duration %q is shorter than an hour, which cert-manager refuses; write \"1h\" or more" .webhook.certManager.duration) -}}
{{- end -}}
{{- if and $renewBefore (lt (int64 $renewBefore) 300) -}}
{{- $mistakes = append $mistakes (printf "webhook.certManager.renewBefore %q is shorter than five minutes, which cert-manager refuses; write a third of the duration" .webhook.certManager.renewBefore) -}}
{{- end -}}
{{- $secret := include "nv-ipam.webhookSecret" $ -}}
{{- if and (not .webhook.certManager.issuerRef) (gt (len $secret) 61) -}}
{{- $mistakes = append $mistakes (printf "webhook.secretName %q has %d characters: with \"-ca\" it is the common name of the chart's own CA, which may have 64; write 61 at most, or name an issuer in webhook.certManager.issuerRef" $secret (len $secret)) -}}
{{- end -}}
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
{{- if and (or $logging.splitStream $logging.infoBufferSize) (not $alpha) -}}
{{- $mistakes = append $mistakes (printf "%s.logging.splitStream and infoBufferSize are alpha; add %s.featureGates.LoggingAlphaOptions: true" $component $component) -}}
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

{{/* A duration such as "1m30s" in whole seconds; nothing, if it is none. */}}
{{- define "nv-ipam.seconds" -}}
{{- if regexMatch `^([0-9]{1,6}([.][0-9]{1,6})?(h|m|s|ms)){1,8}$` . -}}
{{- $start := toDate "2006-01-02" "2000-01-01" -}}
{{- sub (unixEpoch (mustDateModify . $start)) (unixEpoch $start) -}}
{{- end -}}
{{- end }}
