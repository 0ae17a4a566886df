#!/bin/sh
# Copies the custom resource definitions into the chart, since Helm reads only what lies inside it, and makes Argo CD's
# settings from the health check: Argo CD wants one per kind.
set -eu
cd "$(dirname "$0")"
rm -rf files/crds
mkdir -p files/crds
cp ../../crds/*.yaml files/crds/

{
  echo '# Made from health.lua by generate.sh: merge it into Argo CD, see docs/gitops.md.'
  echo 'apiVersion: v1'
  echo 'kind: ConfigMap'
  echo 'metadata:'
  echo '  name: argocd-cm'
  echo 'data:'
  for definition in ../../crds/*.yaml; do
    kind=$(sed -n 's/^    kind: //p' "$definition")
    echo "  resource.customizations.health.kellet.dev_$kind: |"
    sed 's/^\(.\)/    \1/' argocd/health.lua
  done
} >argocd/argocd-cm.yaml
