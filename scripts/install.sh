#!/bin/sh
# Installs the npm packages of this lock file unless they are already installed. Needs only sh and any npm.
set -eu
cd "$(dirname "$0")/.."
stamp=node_modules/.kellet-package-lock.json
if cmp -s package-lock.json "$stamp" && [ -x node_modules/.bin/node ]; then exit 0; fi

# node_modules/.bin is already on PATH, but may be an incomplete installation.
PATH=$(printf %s "$PATH" | sed "s#^$PWD/node_modules/.bin:##")
export PATH
if ! command -v npm >/dev/null 2>&1; then
	echo 'npm was not found: install Node.js 18 or later (https://nodejs.org)' >&2
	exit 1
fi
major=$(node -p 'process.versions.node.split(".")[0]')
if [ "$major" -lt 18 ]; then
	echo "Node.js 18 or later is needed to install the packages; this is $(node --version)" >&2
	exit 1
fi

echo 'installing npm packages (once for this lock file)' >&2
started=$(date +%s)
# Errors only: npm's warnings about an older system Node do not apply to the Node that is installed here.
npm ci --no-audit --no-fund --loglevel=error >&2 &
pid=$!
trap 'kill $pid 2>/dev/null; exit 130' INT TERM
while kill -0 $pid 2>/dev/null; do
	sleep 1
	elapsed=$(($(date +%s) - started))
	if [ $((elapsed % 5)) -eq 0 ] && kill -0 $pid 2>/dev/null; then
		echo "  … ${elapsed} s, $(find node_modules -maxdepth 2 -name package.json 2>/dev/null | wc -l) packages" >&2
	fi
done
wait $pid

# The package `node` links its program with an install script, which not every npm runs as expected.
version=v$(node -p 'require("./node_modules/node/package.json").version')
if [ "$(node_modules/.bin/node --version 2>/dev/null)" != "$version" ]; then
	for program in node_modules/node-*/bin/node node_modules/node/node_modules/node-*/bin/node; do
		if [ "$("$program" --version 2>/dev/null)" = "$version" ]; then ln -sf "../../$program" node_modules/.bin/node; fi
	done
fi
if [ "$(node_modules/.bin/node --version 2>/dev/null)" != "$version" ]; then
	echo "Node.js $version could not be installed from npm for this platform" >&2
	exit 1
fi

node_modules/.bin/node dashboard/build.ts

cp package-lock.json "$stamp"
echo "npm packages installed in $(($(date +%s) - started)) s" >&2
