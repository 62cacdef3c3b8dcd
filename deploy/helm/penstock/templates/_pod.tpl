{{/* Parts that the pods of the gateway and of the migration share. */}}

{{/* Stops the rendering if Secrets are missing, or if the pods could not start or would not be reached. */}}
{{- define "penstock.check" -}}
{{- $variables := toJson .Values.extraEnv -}}
{{- if or (regexMatch "(?m)^[^#\\n]*tls_certificate_file" .Values.config) (contains "TLS_CERTIFICATE_FILE" $variables) -}}
{{- fail "set tls.existingSecret instead of server.tls_certificate_file: the probes need to know that the gateway accepts only TLS" -}}
{{- end -}}
{{- /* `store.data_dir` means SQLite if no URL is set. A URL may be in a secret, whose content is unknown here. */ -}}
{{- $mayHaveUrl := or .Values.environmentSecrets (contains "PENSTOCK_STORE_URL" $variables) (regexMatch "(?m)^[^#\\n]*postgres" .Values.config) -}}
{{- $hasDataDir := and (regexMatch "(?m)^[^#\\n]*data_dir" .Values.config) (not $mayHaveUrl) -}}
{{- $hasSqlite := or (regexMatch "(?m)^[^#\\n]*sqlite:" .Values.config) $hasDataDir (contains "sqlite:" $variables) -}}
{{- $hasStore := or .Values.database.existingSecret $hasSqlite (regexMatch "(?m)^\\s*(\\[store\\]|store\\.)" .Values.config) (contains "PENSTOCK_STORE_URL" $variables) -}}
{{- $hasKeys := or (regexMatch "(?m)^\\s*(\\[\\[\\s*keys\\s*\\]\\]|keys\\s*=)" .Values.config) (contains "require_key" .Values.config) (contains "REQUIRE_KEY" $variables) -}}
{{- if not (or $hasStore $hasKeys .Values.environmentSecrets) -}}
{{- fail "the gateway would not start, because it has neither a store nor a key: set database.existingSecret, or [[keys]] in config" -}}
{{- end -}}
{{- if and $hasSqlite (not .Values.database.existingSecret) (or .Values.autoscaling.enabled (gt (int .Values.replicas) 1)) -}}
{{- fail "SQLite belongs to one pod, and each pod would have a store of its own: set replicas to 1 without autoscaling, or database.existingSecret" -}}
{{- end -}}
{{- if .Values.database.existingSecret -}}
{{- if not (or .Values.masterKey.existingSecret (contains "master_key_reference" .Values.config)) -}}
{{- fail "masterKey.existingSecret is needed with database.existingSecret; or set store.master_key_reference in config" -}}
{{- end -}}
{{- if and .Values.migration.enabled (not .Values.adminKey.existingSecret) -}}
{{- fail "adminKey.existingSecret is needed with database.existingSecret: without it the first admin key would be printed to the log of the migration" -}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "penstock.podSecurityContext" -}}
runAsNonRoot: true
{{- if not .Values.openshift }}
runAsUser: {{ .Values.userId }}
runAsGroup: {{ .Values.userId }}
fsGroup: {{ .Values.userId }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "penstock.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* One environment variable from a Secret: a list of its name and the values of the Secret. */}}
{{- define "penstock.secretEnv" -}}
{{- $secret := index . 1 -}}
{{- if $secret.existingSecret }}
- name: {{ index . 0 }}
  valueFrom:
    secretKeyRef:
      name: {{ $secret.existingSecret }}
      key: {{ $secret.key }}
{{- end }}
{{- end }}

{{/* Environment that the gateway and the migration need. */}}
{{- define "penstock.storeEnv" -}}
- name: PENSTOCK_CONFIG
  value: /var/lib/penstock/penstock.toml
{{- include "penstock.secretEnv" (list "PENSTOCK_STORE_URL" .Values.database) }}
{{- include "penstock.secretEnv" (list "PENSTOCK_STORE_MASTER_KEY" .Values.masterKey) }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "penstock.envFrom" -}}
{{- with .Values.environmentSecrets }}
envFrom:
{{- range . }}
  - secretRef:
      name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* The settings file is in the folder of the volume, because the gateway writes beside it. */}}
{{- define "penstock.volumeMounts" -}}
- name: state
  mountPath: /var/lib/penstock
- name: config
  mountPath: /var/lib/penstock/penstock.toml
  subPath: penstock.toml
  readOnly: true
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
