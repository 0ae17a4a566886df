// Checks the settings and metrics in docs/operations.md, the alerts with their runbooks, and the dashboards against the programs
// and the chart.
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { parse } from 'yaml';
import { newSigningKey } from '../apiserver/src/auth/testing/test-platform.ts';
import { readConfig as readApiserverConfig } from '../apiserver/src/config/config.ts';
import { eventually } from '../apiserver/src/platform/testing/eventually.ts';
import { createTestDatabase, type TestDatabase } from '../apiserver/src/platform/testing/test-database.ts';
import { absentCluster } from '../apiserver/src/platform/testing/test-kubeconfig.ts';
import { readConfig as readOperatorConfig } from '../operator/src/config.ts';
import { dashboardQueries } from './chart/dashboards.ts';
import type { RegisteredMetric } from './report-metrics.ts';

const root = path.dirname(import.meta.dirname);
const read = (file: string): string => readFileSync(path.join(root, file), 'utf8');
const page = read('docs/operations.md');
const alerts = parse(read('charts/kellet/files/alerts.yaml')) as { alert: string; expr: string; runbook: string }[];

/** Returns the cells of the table under a heading, without backticks. */
function table(heading: string): string[][] {
  const section = page.split(/^#+ /m).find((text) => text.startsWith(`${heading}\n`));
  if (section === undefined) throw new Error(`docs/operations.md has no section "${heading}"`);
  const lines = section.split('\n').filter((line) => line.startsWith('| `'));
  return lines.map((line) =>
    line
      .slice(2, -2)
      .split(' | ')
      .map((cell) => cell.trim().replaceAll('`', '')),
  );
}

/** Converts a program's --help to rows of the page: variable, default, chart value, description. */
function settingsOf(program: 'apiserver' | 'operator', required: ReadonlySet<string>): string[][] {
  const { stdout } = spawnSync(process.execPath, [path.join(root, program, 'src/main.ts'), '--help'], {
    encoding: 'utf8',
  });
  const template = read(`charts/kellet/templates/${program}-deployment.yaml`);
  return [...stdout.matchAll(/^ {2}(?:--[a-z0-9-]+)? *(K[A-Z]+[A-Z0-9_]*) +(.+)$/gm)].map(
    ([, name = '', said = '']) => {
      const [, help = '', choices, fallback] =
        /^(.*?)(?: \((?:required|(?:([^()]*); )?default:? ([^()]*))\))?$/.exec(said) ?? [];
      const what = choices === undefined ? help : `${help} (${choices})`;
      return [name, required.has(name) ? 'required' : (fallback ?? '—'), inChart(template, program, name), what];
    },
  );
}

/** Returns the chart's source of a variable. */
function inChart(template: string, program: string, name: string): string {
  if (new RegExp(`--${name.replace('KELLET_', '').toLowerCase()}={{ ternary "all"`).test(template)) return 'targets';
  const flag = new RegExp(`--${name.replace('KELLET_', '').toLowerCase().replaceAll('_', '-')}=(\\w+)`).exec(
    template,
  )?.[1];
  if (flag) return `always ${flag}`;
  const value = new RegExp(`name: ${name}, value: (.+) }$`, 'm').exec(template)?.[1];
  const path = value && /\.Values\.([A-Za-z0-9.]+)/.exec(value)?.[1];
  if (path) return path;
  const helper = value && /include "kellet\.(\w+)"/.exec(value)?.[1];
  const own =
    helper && new RegExp(`\\.Values\\.(\\w+\\.${helper})\\b`).exec(read('charts/kellet/templates/_helpers.tpl'));
  if (own) return own[1]!;
  if (helper) return 'set by the chart';
  if (value) return `always ${value.replaceAll("'", '')}`;
  const key = new RegExp(`"name" "${name}" "key" "([A-Za-z0-9]+)"`).exec(template)?.[1];
  if (key) return `key ${key} of the Secret`;
  return new RegExp(`name: ${name}$`, 'm').test(template) ? 'set by the chart' : `${program}.extraEnv`;
}

/** Returns the names that an empty configuration reports as missing. */
function requiredOf(readConfig: () => unknown): Set<string> {
  try {
    readConfig();
  } catch (error) {
    return new Set((error as Error).message.match(/^ +KELLET_[A-Z_]+/gm)?.map((name) => name.trim()));
  }
  throw new Error('an empty configuration was accepted');
}

const isOwn = ({ name }: RegisteredMetric): boolean => !/^(nodejs|process)_/.test(name);
const metricRow = ({ name, type, labels, help }: RegisteredMetric): string[] => [
  name,
  type,
  labels.join(', ') || '—',
  help.replace(/\.$/, ''),
];
const sorted = (rows: string[][]): string[] => rows.map((row) => row.join(' | ')).sort();

/** Returns the metrics in a PromQL expression, and the labels that it matches or groups by. */
function namesIn(expression: string): { metrics: string[]; labels: string[] } {
  const matchers = [...expression.matchAll(/\{([^}]*)\}/g)].map(([, text = '']) => text);
  const groups = [...expression.matchAll(/\b(?:by|without|on) ?\(([^)]*)\)/g)].map(([, text = '']) => text);
  const rest = expression
    .replaceAll(/\{[^}]*\}|"[^"]*"|\[[^\]]*\]/g, '')
    .replaceAll(/\b(?:by|without|on) ?\([^)]*\)/g, '');
  return {
    metrics: [...rest.matchAll(/\b[a-z_][a-z0-9_]*\b(?! *\()/g)]
      .map(([name]) => name)
      .filter((name) => !['and', 'or', 'unless', 'bool'].includes(name)),
    labels: [
      ...matchers.flatMap((text) => [...text.matchAll(/([a-z_]+) ?[=!]/g)].map(([, name = '']) => name)),
      ...groups.flatMap((text) => text.split(',').map((name) => name.trim())),
    ],
  };
}

describe('docs/operations.md', function () {
  this.timeout(60_000);
  let test: TestDatabase;
  let folder: string;
  const registered = { apiserver: [] as RegisteredMetric[], operator: [] as RegisteredMetric[] };
  const children: ChildProcess[] = [];

  /** Starts a program. Returns its metrics once it is serving. */
  async function metricsOf(program: 'apiserver' | 'operator', settings: Record<string, string>) {
    const file = path.join(folder, `${program}.jsonl`);
    const preload = path.join(import.meta.dirname, 'report-metrics.ts');
    const child = spawn(process.execPath, ['--import', preload, path.join(root, program, 'src/main.ts')], {
      stdio: ['ignore', 'ignore', 'pipe'],
      env: {
        PATH: process.env['PATH'],
        NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
        KUBECONFIG: path.join(folder, 'kubeconfig'),
        KELLET_LISTEN_HOST: '127.0.0.1',
        KELLET_METRICS_PORT: '0',
        KELLET_CONTROL_SECRET: 'control'.repeat(5),
        KELLET_TEST_METRICS_FILE: file,
        ...settings,
      },
    });
    children.push(child);
    let log = '';
    child.stderr.setEncoding('utf8').on('data', (text: string) => (log += text));
    await eventually(() => {
      if (child.exitCode !== null) throw new Error(log);
      return log.includes('"msg":"serving');
    }, 30_000);
    return readFileSync(file, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as RegisteredMetric);
  }

  before(async () => {
    folder = mkdtempSync(path.join(tmpdir(), 'kellet-operations-test-'));
    // Metrics are registered before the process connects to the Kubernetes API.
    writeFileSync(path.join(folder, 'kubeconfig'), absentCluster);
    test = await createTestDatabase();
    const ports = ['REST', 'GRPC', 'CONTROL', 'DASHBOARD', 'MQTT'].map((name) => [`KELLET_${name}_PORT`, '0'] as const);
    registered.apiserver = await metricsOf('apiserver', {
      ...Object.fromEntries(ports),
      KELLET_DATABASE_URL: test.url,
      KELLET_NATS_URL: process.env['KELLET_TEST_NATS_URL']!,
      KELLET_JWT_PRIVATE_KEY: newSigningKey(),
      KELLET_CALLBACK_HMAC_SECRET: 'callback secret',
      // Processor and wallet have additional metrics.
      KELLET_NETWORK: 'local',
      KELLET_ARC_URL: 'http://127.0.0.1:1',
      KELLET_HEADERS_URL: 'http://127.0.0.1:1',
      KELLET_WALLET_KEY: `01${randomBytes(31).toString('hex')}`,
    });
    registered.operator = await metricsOf('operator', { KELLET_CONTROL_ADDRESS: '127.0.0.1:1' });
  });
  after(async () => {
    for (const child of children) {
      const ended = once(child, 'exit');
      if (child.exitCode === null && child.kill('SIGKILL')) await ended;
    }
    await test.drop();
    rmSync(folder, { recursive: true, force: true });
  });

  it('lists the settings of kellet-apiserver', () => {
    const required = requiredOf(() => readApiserverConfig({}, []));
    expect(table('Settings of kellet-apiserver')).to.deep.equal(settingsOf('apiserver', required));
  });

  it('lists the settings of kellet-operator', () => {
    const required = requiredOf(() => readOperatorConfig({}, 'id'));
    const rows = settingsOf('operator', required);
    expect(table('Settings of kellet-operator')).to.deep.equal(rows);
    const known = new Set(read('operator/src/config.ts').match(/(?<=\[?')(KELLET_[A-Z_]+|KUBECONFIG)(?=')/g));
    expect(
      rows.map(([name]) => name),
      'the settings named by --help',
    ).to.have.members([...known]);
  });

  for (const program of ['apiserver', 'operator'] as const) {
    it(`lists the metrics of kellet-${program}`, () => {
      const rows = registered[program].filter(isOwn).map(metricRow);
      expect(sorted(table(`Metrics of kellet-${program}`))).to.deep.equal(sorted(rows));
    });
  }

  /** Checks that a process has each metric of an expression, and that one of them has each label. */
  const checkExpression = (name: string, expression: string) => {
    const all = [...registered.apiserver, ...registered.operator];
    const { metrics, labels } = namesIn(expression);
    expect(metrics, `${name} has no metric`).not.to.have.length(0);
    const known = metrics.map((metricName) => {
      const found = all.find(
        (metric) =>
          metric.name === metricName ||
          (metric.type === 'histogram' && metricName.replace(/_(bucket|sum|count)$/, '') === metric.name),
      );
      expect(found, `${name}: no process has a metric ${metricName}`).not.to.equal(undefined);
      return found!;
    });
    const allowed = ['le', 'pod', 'namespace', ...known.flatMap((metric) => metric.labels)];
    for (const label of labels) expect(allowed, `${name}: none of its metrics has this label`).to.include(label);
  };

  it('alerts on metrics and labels that exist', () => {
    expect(alerts).not.to.have.length(0);
    for (const { alert, expr } of alerts) checkExpression(alert, expr);
  });

  it('shows metrics and labels that exist on the dashboards', () => {
    for (const { dashboard, expression } of dashboardQueries()) checkExpression(dashboard, expression);
  });

  it('has a runbook for every alert, and no other', () => {
    const pages = readdirSync(path.join(root, 'docs/runbooks')).filter((name) => name !== 'README.md');
    expect(pages).to.have.members(alerts.map(({ runbook }) => `${runbook}.md`));
    for (const { alert, runbook } of alerts) {
      const text = read(`docs/runbooks/${runbook}.md`);
      expect(text, alert).to.match(new RegExp(`^# ${alert}\n\n.+\n\n## How to look\n[^]+\n## What to do\n\n.`));
      for (const [, target = ''] of text.matchAll(/\]\(([^)#]+)(?:#[^)]*)?\)/g)) {
        expect(existsSync(path.join(root, 'docs/runbooks', target)), `${runbook}: ${target}`).to.equal(true);
      }
    }
  });
});
