// `make interop`: the alerts and the queries of the dashboards, checked with promtool.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { expect } from 'chai';
import { parse, stringify } from 'yaml';
import { checkout } from '../../dev/stack/paths.ts';
import { promtool } from '../testing/interop-programs.ts';
import { needs } from '../testing/interop-skip.ts';

interface Alert {
  readonly alert: string;
  readonly expr: string;
  readonly for: string;
}
interface Dashboard {
  readonly panels: readonly { readonly targets?: readonly { readonly expr: string }[] }[];
}

const files = path.join(checkout, 'charts/kellet/files');

describe('promtool', function () {
  this.timeout(180_000);
  const folder = mkdtempSync(path.join(tmpdir(), 'kellet-promtool-'));
  let program: string;

  before(async function () {
    program = await needs(this, 'promtool', promtool);
  });
  after(() => rmSync(folder, { recursive: true }));

  /** Returns the output of promtool about rules, and whether it accepts them. */
  function check(rules: readonly object[]): { isAccepted: boolean; output: string } {
    const file = path.join(folder, 'rules.yaml');
    writeFileSync(file, stringify({ groups: [{ name: 'kellet', rules }] }));
    const { status, stdout, stderr } = spawnSync(program, ['check', 'rules', file], { encoding: 'utf8' });
    return { isAccepted: status === 0, output: `${stdout}${stderr}` };
  }

  it('accepts the alerts', () => {
    const alerts = parse(readFileSync(path.join(files, 'alerts.yaml'), 'utf8')) as Alert[];
    const { isAccepted, output } = check(alerts.map(({ alert, expr, for: time }) => ({ alert, expr, for: time })));
    expect(isAccepted, output).to.equal(true);
    expect(output).to.contain(`${alerts.length} rules found`);
  });

  it('accepts the queries of the dashboards', () => {
    const folders = path.join(files, 'dashboards');
    const queries = readdirSync(folders).flatMap((name) =>
      (JSON.parse(readFileSync(path.join(folders, name), 'utf8')) as Dashboard).panels.flatMap(({ targets = [] }) =>
        // What Grafana puts in.
        targets.map(({ expr }) => expr.replaceAll('$__rate_interval', '5m').replaceAll('$namespace', '.*')),
      ),
    );
    const { isAccepted, output } = check(queries.map((expr, n) => ({ record: `query:${n}`, expr })));
    expect(isAccepted, output).to.equal(true);
    expect(output).to.contain(`${queries.length} rules found`);
  });

  it('refuses a query that is wrong', () => {
    expect(check([{ record: 'wrong', expr: 'sum(rate(a[5m])' }]).isAccepted).to.equal(false);
  });
});
