// Defines which folder of apiserver/src may import which, and the lint rules that enforce it (eslint.config.js).
import path from 'node:path';
import type { Rule } from 'eslint';

const root = path.dirname(import.meta.dirname);
const base = 'apiserver/src';

/**
 * The folders of apiserver/src, lowest layer first, each with the folders it may import. `auth` stands for the files
 * directly in that folder, `auth/*` also for its subfolders. A folder may always import its own subfolders, and no folder
 * imports one listed after it. The subfolders of a folder are adjacent, so there are no cycles between subfolders or
 * between top-level folders.
 */
export const layers: Readonly<Record<string, readonly string[]>> = {
  // The files directly in platform are below its subfolders; in other folders they are above them.
  platform: [],
  'platform/observability': [],
  'platform/concurrency': ['platform', 'platform/observability'],
  'platform/requests': ['platform', 'platform/concurrency'],
  'platform/addresses': ['platform'],
  'platform/background': ['platform', 'platform/observability'],
  'platform/tls': ['platform', 'platform/addresses', 'platform/observability', 'platform/background'],
  'platform/outbound': ['platform', 'platform/observability'],
  'platform/kubernetes': ['platform', 'platform/observability', 'platform/outbound'],
  'platform/database/connection': ['platform', 'platform/concurrency', 'platform/observability'],
  'platform/database': ['platform', 'platform/observability'],
  'platform/statements': ['platform/concurrency', 'platform/requests', 'platform/database'],
  'platform/events': [
    ...['platform', 'platform/concurrency', 'platform/observability', 'platform/background', 'platform/database'],
    'platform/statements',
  ],
  'platform/audit': [
    ...['platform', 'platform/observability', 'platform/database/*', 'platform/statements', 'platform/events'],
  ],
  'platform/grpc': ['platform', 'platform/addresses'],
  'platform/object-store': ['platform', 'platform/concurrency', 'platform/outbound'],
  config: ['platform/*'],
  policies: ['platform', 'platform/addresses', 'platform/requests', 'platform/database', 'platform/observability'],
  audit: ['platform/*', 'config'],
  'auth/certificates': ['platform/*'],
  'auth/roles': ['platform'],
  'auth/access-tokens': ['platform/*', 'auth/roles'],
  'auth/credentials': ['platform/*', 'config', 'policies', 'auth/roles', 'auth/access-tokens'],
  'auth/device-credentials': ['platform/*', 'auth/certificates', 'auth/credentials'],
  'auth/api-keys': ['platform/*', 'auth/roles', 'auth/credentials'],
  'auth/accounts': ['platform/*', 'policies', 'auth/roles'],
  'auth/second-factors': ['platform/*', 'auth/credentials'],
  'auth/sign-in': [
    ...['platform/*', 'auth/roles', 'auth/access-tokens', 'auth/credentials', 'auth/accounts', 'auth/second-factors'],
  ],
  'auth/users': [
    ...['platform/*', 'auth/roles', 'auth/credentials', 'auth/api-keys', 'auth/accounts', 'auth/second-factors'],
    'auth/sign-in',
  ],
  'auth/sso': [
    ...['platform/*', 'policies', 'auth/roles', 'auth/credentials', 'auth/api-keys', 'auth/accounts'],
    ...['auth/second-factors', 'auth/sign-in', 'auth/users'],
  ],
  auth: ['platform/*', 'config'],
  'chain-anchor/headers': ['platform/*'],
  'chain-anchor/processor': ['platform/outbound'],
  'chain-anchor/transactions': ['platform/*', 'policies', 'chain-anchor/processor'],
  'chain-anchor/wallet': ['platform/*', 'chain-anchor/headers', 'chain-anchor/processor', 'chain-anchor/transactions'],
  'chain-anchor/pipeline': ['platform/*', 'chain-anchor/*'],
  'chain-anchor': ['platform/*', 'config'],
  internal: ['platform/*', 'config'],
  control: ['platform/*', 'config', 'policies', 'internal'],
  'device-registry/liveness': ['platform/*', 'policies'],
  'device-registry/history': ['platform/*'],
  'device-registry/entities': ['platform/*', 'config', 'auth/credentials'],
  'device-registry/alarms': ['platform/*', 'device-registry/entities'],
  'device-registry/devices': [
    ...['platform/*', 'config', 'policies', 'internal'],
    ...['auth/certificates', 'auth/credentials', 'auth/device-credentials'],
    ...['device-registry/liveness', 'device-registry/history', 'device-registry/entities', 'device-registry/alarms'],
  ],
  'device-registry/fleet': ['platform/*', 'auth/credentials', 'device-registry/devices'],
  'device-registry/groups': ['platform/*', 'policies', 'auth/credentials', 'device-registry/devices'],
  'device-registry/import-export': ['platform/*', 'policies', 'auth/device-credentials', 'device-registry/devices'],
  'device-registry': ['config', 'policies', 'internal', 'auth/device-credentials'],
  'gateway/transcoding': ['platform'],
  'gateway/observability': ['platform/*', 'auth/credentials', 'gateway/transcoding'],
  'gateway/rate-limit': ['platform/*'],
  'gateway/memory': ['platform/*'],
  'gateway/admission': [
    ...['platform/*', 'auth/credentials'],
    ...['gateway/observability', 'gateway/rate-limit', 'gateway/transcoding'],
  ],
  'gateway/http': [
    ...['platform/*', 'gateway/admission', 'gateway/memory', 'gateway/observability', 'gateway/rate-limit'],
    'gateway/transcoding',
  ],
  'gateway/pages': ['gateway/http'],
  'gateway/grpc': [
    ...['platform/*', 'auth/credentials', 'gateway/admission', 'gateway/http'],
    ...['gateway/memory', 'gateway/observability', 'gateway/transcoding'],
  ],
  gateway: ['platform/*', 'config'],
  diagnostics: ['platform', 'platform/observability', 'platform/audit', 'gateway/admission', 'gateway/http'],
  openapi: [
    'platform',
    'platform/events',
    'auth/access-tokens',
    'auth/credentials',
    'gateway',
    'gateway/admission',
    'gateway/transcoding',
  ],
  resources: ['platform/*', 'config', 'policies', 'auth/credentials', 'control'],
  tenants: [
    ...['platform/*', 'config', 'policies', 'control', 'resources'],
    ...['auth/accounts', 'auth/credentials', 'auth/users'],
  ],
  'device-link/commands': ['platform/*', 'config'],
  'device-link/attributes': ['platform/*', 'config', 'device-registry/devices', 'device-link/commands'],
  'device-link/provisioning': [
    ...['platform/*', 'config', 'policies', 'auth/credentials', 'auth/device-credentials'],
    ...['control', 'resources', 'device-registry/devices'],
  ],
  'device-link/ota/artifacts': ['platform/*', 'policies'],
  'device-link/ota/packages': ['platform/*', 'policies', 'control', 'resources', 'device-link/ota/artifacts'],
  'device-link/ota/assignments': ['platform/*', 'device-link/ota/packages'],
  'device-link/ota/rollouts/decisions': [
    ...['platform', 'platform/requests', 'control', 'device-registry/devices', 'device-link/provisioning'],
    'device-link/ota/packages',
  ],
  'device-link/ota/rollouts/stores': [
    ...['platform/*', 'control', 'device-registry/devices', 'device-link/commands', 'device-link/ota/packages'],
    'device-link/ota/rollouts/decisions',
  ],
  'device-link/ota/rollouts/planning': [
    ...['platform/*', 'policies', 'control', 'device-link/ota/packages'],
    ...['device-link/ota/rollouts/decisions', 'device-link/ota/rollouts/stores'],
  ],
  'device-link/ota/rollouts/work': [
    ...['platform/*', 'policies', 'control', 'device-registry/devices', 'device-link/commands'],
    ...['device-link/ota/packages', 'device-link/ota/assignments'],
    ...['device-link/ota/rollouts/decisions', 'device-link/ota/rollouts/stores', 'device-link/ota/rollouts/planning'],
  ],
  'device-link/ota/rollouts': [
    ...['platform/*', 'policies', 'control', 'resources', 'device-registry/devices', 'device-link/commands'],
    'device-link/attributes',
    ...['device-link/ota/packages', 'device-link/ota/assignments'],
  ],
  'device-link/ota/delivery': [
    ...['platform/*', 'policies', 'device-registry/devices', 'device-link/commands'],
    ...['device-link/ota/artifacts', 'device-link/ota/packages', 'device-link/ota/assignments'],
    'device-link/ota/rollouts/*',
  ],
  'device-link/ota': ['platform/*', 'config', 'policies', 'resources'],
  'device-link/rpc': [
    ...[
      'platform/*',
      'config',
      'policies',
      'device-registry/devices',
      'device-registry/liveness',
      'device-link/commands',
    ],
    ...['device-link/ota/rollouts/*', 'device-link/ota/delivery'],
  ],
  'device-link/gateways': [
    'platform/*',
    'config',
    'policies',
    'auth/device-credentials',
    'device-registry/devices',
    'device-registry/liveness',
  ],
  'device-link/streams': [
    ...[
      'platform/*',
      'config',
      'device-registry/devices',
      'device-registry/liveness',
      'device-link/commands',
      'device-link/rpc',
    ],
  ],
  'telemetry/points': ['platform'],
  'telemetry/kernel': ['telemetry/points'],
  'telemetry/leaves': ['platform/*', 'telemetry/points'],
  'telemetry/write': ['platform/*', 'policies', 'telemetry/points', 'telemetry/leaves'],
  'telemetry/cold': ['platform/*', 'config', 'policies', 'telemetry/points', 'telemetry/write'],
  'telemetry/ingest': ['platform/*', 'policies', 'telemetry/points', 'telemetry/kernel', 'telemetry/write'],
  'telemetry/read': ['platform/*', 'policies', 'telemetry/points', 'telemetry/write', 'telemetry/cold'],
  'telemetry/live': ['platform/*', 'policies', 'tenants', 'telemetry/points'],
  telemetry: ['platform/*', 'config', 'policies', 'internal'],
  'webhooks/sending': ['platform/*'],
  webhooks: ['platform/*', 'config', 'policies', 'auth/credentials'],
  'rules-engine/cel': [],
  'rules-engine/rules': [
    ...['platform/*', 'device-registry/alarms', 'device-link/commands', 'webhooks/sending', 'rules-engine/cel'],
  ],
  'rules-engine/actions': [
    ...['platform/*', 'policies', 'device-registry/devices', 'device-link/commands'],
    ...['webhooks/sending', 'rules-engine/rules'],
  ],
  'rules-engine/evaluation': [
    ...['platform/*', 'policies', 'device-registry/alarms', 'telemetry/points'],
    ...['rules-engine/cel', 'rules-engine/rules', 'rules-engine/actions'],
  ],
  'rules-engine': [
    ...['platform/*', 'config', 'policies', 'auth/credentials', 'device-registry/devices', 'webhooks/sending'],
  ],
  mqtt: [
    ...['platform/*', 'auth/credentials', 'auth/device-credentials', 'device-link/commands', 'device-link/streams'],
    ...['gateway', 'gateway/admission', 'gateway/http', 'gateway/memory', 'gateway/observability'],
    'gateway/transcoding',
  ],
  'dashboard-bff': [
    'device-link/ota/rollouts',
    ...['platform/*', 'gateway/admission', 'gateway/http', 'gateway/memory', 'gateway/observability'],
    ...['telemetry/live', 'telemetry/points'],
  ],
  verifier: [
    ...['platform/*', 'config', 'device-registry/devices', 'chain-anchor/headers'],
    ...['telemetry/points', 'telemetry/leaves', 'telemetry/cold', 'telemetry/read'],
  ],
  'tenant-data': [
    ...['platform/*', 'config', 'control', 'resources', 'tenants', 'chain-anchor/wallet', 'auth/device-credentials'],
    ...['device-registry/devices', 'device-link/ota/artifacts', 'rules-engine/evaluation'],
    ...['telemetry/cold', 'telemetry/read', 'telemetry/write', 'verifier'],
  ],
  fsck: [
    ...['platform/*', 'config', 'policies', 'chain-anchor/headers', 'device-link/ota/artifacts'],
    ...['telemetry/points', 'telemetry/leaves', 'telemetry/write', 'telemetry/cold'],
  ],
  backup: [...['platform/*', 'config', 'device-link/ota/artifacts', 'telemetry/write', 'telemetry/cold']],
  // main.ts, create-services.ts and other files that assemble the process.
  '.': ['*'],
};

/** The folders, lowest layer first. */
export const folders: readonly string[] = Object.keys(layers);

/** Reports whether an entry of the table covers a folder. */
export const covers = (entry: string, folder: string): boolean =>
  entry === '*' ||
  entry === folder ||
  (entry.endsWith('/*') && (folder === entry.slice(0, -2) || folder.startsWith(entry.slice(0, -1))));

/** Returns why a file of one folder must not import from another, or undefined. */
export function importProblem(from: string, to: string): string | undefined {
  if (from === to) return undefined;
  for (const folder of [from, to]) {
    if (!folders.includes(folder)) return `${base}/${folder} has no row in scripts/layers.ts`;
  }
  if (folders.indexOf(to) > folders.indexOf(from)) return `${to} is in a higher layer than ${from} (scripts/layers.ts)`;
  const isAllowed = to.startsWith(`${from}/`) || layers[from]!.some((entry) => covers(entry, to));
  return isAllowed ? undefined : `${from} must not import ${to} (scripts/layers.ts)`;
}

/** Returns the folder of a file below apiserver/src, or undefined for any other file. */
export function folderOf(file: string): string | undefined {
  const relative = path.relative(path.join(root, base), file);
  return relative.startsWith('..') ? undefined : path.dirname(relative).replaceAll(path.sep, '/');
}

/** Reports whether a path belongs to tests: a test, or a helper in a `testing` folder. */
export const isForTests = (file: string): boolean => /\.test\.ts$|(^|\/)testing\//.test(file.replaceAll(path.sep, '/'));

/** Calls `check` with the specifier of everything that a file imports, types included. */
const eachImport = (check: (node: Rule.Node, specifier: string) => void): Rule.RuleListener => {
  const visit = (node: Rule.Node): void => {
    const { source } = node as unknown as { source?: { value?: unknown } | null };
    if (typeof source?.value === 'string') check(node, source.value);
  };
  return {
    ImportDeclaration: visit,
    ExportNamedDeclaration: visit,
    ExportAllDeclaration: visit,
    ImportExpression: visit,
    TSImportType: visit,
  };
};

const layersRule: Rule.RuleModule = {
  meta: { type: 'problem', schema: [] },
  create(context) {
    const from = folderOf(context.filename);
    if (from === undefined) return {};
    return eachImport((node, specifier) => {
      if (!specifier.startsWith('.')) return;
      const to = folderOf(path.resolve(path.dirname(context.filename), specifier));
      const message = to === undefined ? undefined : importProblem(from, to);
      if (message !== undefined) context.report({ node, message });
    });
  },
};

const testHelpersRule: Rule.RuleModule = {
  meta: { type: 'problem', schema: [] },
  create(context) {
    return {
      Program(node) {
        if (/^test-.*\.ts$/.test(path.basename(context.filename))) {
          context.report({ node, message: 'a test helper belongs in a testing/ folder' });
        }
      },
      ...eachImport((node, specifier) => {
        if (isForTests(specifier)) context.report({ node, message: 'production code must not import test helpers' });
        if (/^(chai|mocha)(\/|$)/.test(specifier)) {
          context.report({ node, message: `${specifier} is for tests and the helpers in testing/ folders` });
        }
      }),
    };
  },
};

/**
 * The ESLint plugin. `layers` enforces the table within apiserver/src, `test-helpers` keeps test code out of production
 * code.
 */
export const plugin = { rules: { layers: layersRule, 'test-helpers': testHelpersRule } };

/** Returns the table for docs/architecture.md: the layers, then the subfolders of each folder, highest first. */
export function picture(): string {
  const outer = (folder: string): string => folder.split('/')[0]!;
  const heights = new Map<string, number>();
  for (const [folder, entries] of Object.entries(layers)) {
    const below = [...heights].filter(
      ([other]) =>
        other !== outer(folder) && entries.some((entry) => folders.some((f) => outer(f) === other && covers(entry, f))),
    );
    const height = Math.max(-1, ...below.map(([, height]) => height)) + 1;
    heights.set(outer(folder), Math.max(heights.get(outer(folder)) ?? 0, height));
  }
  const nameOf = (folder: string): string => (folder === '.' ? 'main.ts, create-services.ts …' : folder);
  const lines: string[] = [];
  for (let layer = Math.max(...heights.values()); layer >= 0; layer -= 1) {
    const names = [...heights].flatMap(([folder, height]) => (height === layer ? [nameOf(folder)] : []));
    lines.push(`${String(layer).padStart(2)}  ${names.join(' · ')}`);
  }
  lines.push('');
  for (const folder of [...heights.keys()].reverse()) {
    const subfolders = folders
      .filter((other) => other.startsWith(`${folder}/`))
      .map((subfolder) => subfolder.slice(folder.length + 1));
    if (subfolders.length > 0) lines.push(`${folder}: ${subfolders.join(' < ')}`);
  }
  return lines.join('\n');
}
