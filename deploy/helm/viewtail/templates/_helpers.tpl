{{- define "viewtail.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "viewtail.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" }}
{{- else if contains (include "viewtail.name" .) .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" }}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "viewtail.name" .) | trunc 54 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "viewtail.selector" -}}
app.kubernetes.io/name: {{ include "viewtail.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "viewtail.labels" -}}
{{ include "viewtail.selector" . }}
app.kubernetes.io/version: {{ default .Chart.AppVersion .Values.image.tag | trunc 63 | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | quote }}
{{- end }}

{{- define "viewtail.serviceAccount" -}}
{{- $own := ternary (include "viewtail.fullname" .) "default" .Values.serviceAccount.create -}}
{{- default $own .Values.serviceAccount.name }}
{{- end }}

{{- /* The ConfigMap with views.py; empty where the image has it. */ -}}
{{- define "viewtail.viewsConfigMap" -}}
{{- with .Values.views -}}
{{- $given := 0 -}}
{{- range list .files .existingConfigMap .inImage }}{{ if . }}{{ $given = add1 $given }}{{ end }}{{ end -}}
{{- if ne (int $given) 1 -}}
{{- fail "\n\nviews: say where views.py is, once:\n  --set-file 'views.files.views\\.py=views.py'    a file of yours, which goes into a ConfigMap\n  --set views.existingConfigMap=NAME             a ConfigMap that exists\n  --set views.inImage=true                       the image has it, in /views\n" -}}
{{- end -}}
{{- if .files -}}
{{- include "viewtail.fullname" $ }}
{{- else -}}
{{- .existingConfigMap }}
{{- end -}}
{{- end -}}
{{- end }}

{{- /* The settings as environment variables: group by group, those of sources.NAME too. */ -}}
{{- define "viewtail.env" -}}
{{- range $group, $members := .Values.settings -}}
{{- if eq $group "sources" -}}
{{- range $source, $own := $members }}{{ include "viewtail.envOfGroup" (dict "prefix" (printf "sources__%s" $source) "settings" $own) }}{{ end -}}
{{- else if kindIs "map" $members -}}
{{- include "viewtail.envOfGroup" (dict "prefix" $group "settings" $members) }}
{{- else }}
- {name: VIEWTAIL_{{ upper $group }}, value: {{ include "viewtail.value" (list $group $members) }}}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "viewtail.envOfGroup" -}}
{{- range $name, $value := .settings }}
- {name: VIEWTAIL_{{ upper $.prefix }}__{{ upper $name }}, value: {{ include "viewtail.value" (list (printf "%s.%s" $.prefix $name) $value) }}}
{{- end -}}
{{- end }}

{{- define "viewtail.value" -}}
{{- $name := first . | replace "__" "." }}{{ $value := last . -}}
{{- if kindIs "string" $value -}}
{{- if regexMatch "://[^/@]*:[^@]*@" $value -}}
{{- fail (printf "\n\nsettings.%s has a password, which everyone could read in the Deployment. Leave it out there, put it into a Secret, and name that:\n  secrets:\n    - {setting: %s, secret: NAME, key: KEY}\n" $name (regexReplaceAll "[a-z_]*url$" $name "password")) -}}
{{- end -}}
{{- $value | quote }}
{{- else if kindIs "slice" $value -}}
{{- join "," $value | quote }}
{{- else -}}
{{- $value | toJson | quote }}
{{- end -}}
{{- end }}

{{- /* What the schema cannot say. */ -}}
{{- define "viewtail.checked" -}}
{{- $url := default "" (dig "source" "url" "" .Values.settings) -}}
{{- if and $url (eq .Values.role "project") (not (hasPrefix "kafka" $url)) -}}
{{- fail "\n\nrole project reads topics: settings.source.url must be kafka://HOST:9092. For views right from MySQL: role all.\n" -}}
{{- end -}}
{{- if and (ne .Values.role "project") (hasPrefix "kafka" $url) -}}
{{- fail (printf "\n\nrole %s reads MySQL: settings.source.url must be mysql://HOST:3306. For views of topics: role project.\n" .Values.role) -}}
{{- end -}}
{{- $given := include "viewtail.env" . -}}
{{- range .Values.extraEnv }}{{ $given = printf "%s\n- {name: %s," $given .name }}{{ end -}}
{{- range .Values.secrets -}}
{{- $variable := printf "- {name: VIEWTAIL_%s," (upper .setting | replace "." "__") -}}
{{- if contains $variable $given -}}
{{- fail (printf "\n\n%s is among secrets, and given once more, there or by settings or extraEnv: only one would count. Leave one out.\n" .setting) -}}
{{- end -}}
{{- $given = printf "%s\n%s" $given $variable -}}
{{- end -}}
{{- end }}
