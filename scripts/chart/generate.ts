// Generates what the chart has from other sources: the custom resource definitions (Helm reads only files inside the chart),
// Argo CD's settings from the health check, the dashboards of Grafana, README.md from the values, and the list of runbooks
// from the alerts.
import { globSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { basename, join } from 'node:path';
import { parse } from 'yaml';
import { dashboards } from './dashboards.ts';
import { valueRows } from './values-page.ts';

const root = join(import.meta.dirname, '../..');
const chart = join(root, 'charts/kellet');
const read = (path: string): string => readFileSync(join(chart, path), 'utf8');
const write = (path: string, text: string): void => writeFileSync(join(chart, path), text);

/** An alert of files/alerts.yaml. */
interface Alert {
  alert: string;
  expr: string;
  for: string;
  severity: string;
  runbook: string;
  summary: string;
}

function copyDefinitions(): void {
  rmSync(join(chart, 'files/crds'), { recursive: true, force: true });
  mkdirSync(join(chart, 'files/crds'), { recursive: true });
  for (const file of globSync('crds/*.yaml', { cwd: root })) {
    const source = readFileSync(join(root, file), 'utf8');
    writeFileSync(
      join(chart, 'files/crds', basename(file)),
      `# Generated from ${file} by scripts/generate.ts.\n${source}`,
    );
  }
}

/** Argo CD takes one check per kind; ours is the same for all. */
function argocdSettings(): string {
  const check = read('argocd/health.lua').replaceAll(/^(?=.)/gm, '    ');
  const kinds = globSync('crds/*.yaml', { cwd: root })
    .sort()
    .map(
      (file) =>
        (parse(readFileSync(join(root, file), 'utf8')) as { spec: { names: { kind: string } } }).spec.names.kind,
    );
  return [
    '# Generated from health.lua by scripts/chart/generate.ts. Merge it into the settings of Argo CD: see docs/gitops.md.',
    ...['apiVersion: v1', 'kind: ConfigMap', 'metadata:', '  name: argocd-cm', 'data:'],
    ...kinds.map((kind) => `  resource.customizations.health.kellet.dev_${kind}: |\n${check.trimEnd()}`),
    '',
  ].join('\n');
}

function valuesPage(): string {
  const { version, description } = parse(read('Chart.yaml')) as { version: string; description: string };
  const rows = valueRows(read('values.yaml')).map(
    ({ path, fallback, text }) => `| \`${path}\` | ${fallback === '' ? '' : `\`${fallback}\``} | ${text} |`,
  );
  return `# The chart kellet

<!-- Generated from values.yaml by scripts/chart/generate.ts. -->

${description}. Version ${version}. [Installing](../../docs/install.md) leads through it, and [operations](../../docs/operations.md) explains settings, metrics and alerts.

## Values

\`values.schema.json\` checks them: an unknown or invalid value is refused with its name.

| value | default | meaning |
|---|---|---|
${rows.join('\n')}
`;
}

function runbooksPage(alerts: readonly Alert[]): string {
  const cell = (text: string) => text.replaceAll('|', '\\|').trim();
  const rows = alerts.map(
    ({ alert, expr, severity, runbook, summary, ...rest }) =>
      `| [\`${alert}\`](${runbook}.md) | ${severity} | ${cell(summary)} | \`${cell(expr)}\` | ${rest.for} |`,
  );
  return `# Runbooks

<!-- Generated from charts/kellet/files/alerts.yaml by scripts/chart/generate.ts. -->

One page for each alert: what it means, how to look, and what to do. \`monitoring.rules.enabled\` of the chart creates the alerts, with the prefix \`Kellet\` and the URL of the page (\`monitoring.rules.runbooks\` is where these pages are). The thresholds are starting points: adjust them to your load, or leave alerts out (\`monitoring.rules.disabled\`).

The pages assume the release \`kellet\` in the namespace \`kellet-system\`. With \`targets: split\` there is a Deployment for each target (\`kellet-telemetry\`) instead of \`kellet-apiserver\`; \`kellet-apiserver …\` means a command in a pod of the data plane: \`kubectl -n kellet-system exec deploy/kellet-apiserver -- kellet-apiserver …\`, or \`deploy/kellet-chain-anchor\` with \`targets: split\` ([commands](../operations.md#commands-in-the-cluster)).

| alert | severity | meaning | expression | for |
|---|---|---|---|---|
${rows.join('\n')}
`;
}

copyDefinitions();
write('argocd/argocd-cm.yaml', argocdSettings());
rmSync(join(chart, 'files/dashboards'), { recursive: true, force: true });
mkdirSync(join(chart, 'files/dashboards'), { recursive: true });
for (const [name, dashboard] of Object.entries(dashboards()))
  write(`files/dashboards/${name}.json`, `${JSON.stringify(dashboard, undefined, 1)}\n`);
write('README.md', valuesPage());
writeFileSync(join(root, 'docs/runbooks/README.md'), runbooksPage(parse(read('files/alerts.yaml')) as Alert[]));
