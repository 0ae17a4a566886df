#!/bin/sh
# Copies the custom resource definitions into the chart: Helm reads only what lies inside it.
set -eu
cd "$(dirname "$0")"
rm -rf files/crds
mkdir -p files/crds
cp ../../crds/*.yaml files/crds/
