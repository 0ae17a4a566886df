// Reads everything that is stored and reports what does not hold. Changes nothing, and may run while the installation is
// in use: what looks damaged is read again before it is reported.
import { sleep } from '../platform/clock.ts';
import { tenantsInPurge } from '../policies/tenant-reader.ts';
import { type Check, type CheckParts, counted, type Finding } from './check.ts';
import { artifactChecks } from './check-artifacts.ts';
import { auditChecks } from './check-audit.ts';
import { batchChecks } from './check-batches.ts';
import { coinChecks } from './check-coins.ts';
import { coldChecks } from './check-cold.ts';
import { countChecks } from './check-counts.ts';
import { headerChecks } from './check-headers.ts';
import { leafChecks } from './check-leaves.ts';
import { pointChecks } from './check-points.ts';
import { transactionChecks } from './check-transactions.ts';

/** The result. */
export interface Report {
  readonly checked: Readonly<Record<(typeof counted)[number], number>>;
  readonly broken: readonly Finding[];
}

/** How often what looks damaged is read again, and the pause before each time. */
export interface Recheck {
  readonly rounds: number;
  readonly milliseconds: number;
}

/** Enough for a reorganisation of the chain to be followed, and for what is in a queue to be written. */
const defaultRecheck: Recheck = { rounds: 3, milliseconds: 5000 };

/** Called now and then with what is being checked, and what has been. */
export type Progress = (phase: string, checked: Report['checked']) => void;

const phases: Readonly<Record<string, (parts: CheckParts) => AsyncIterable<Check> | Iterable<Check>>> = {
  headers: headerChecks,
  transactions: transactionChecks,
  coins: coinChecks,
  batches: batchChecks,
  points: pointChecks,
  'index of leaves': leafChecks,
  'cold files': coldChecks,
  artifacts: artifactChecks,
  'numbers and sums': countChecks,
  'audit logs': auditChecks,
};

/** Checks everything. Throws if something cannot be read, so that nothing can be said about it. */
export async function fsck(parts: CheckParts, progress: Progress, recheck = defaultRecheck): Promise<Report> {
  const checked = Object.fromEntries(counted.map((name) => [name, 0])) as Record<(typeof counted)[number], number>;
  let suspects: { check: Check; findings: readonly Finding[] }[] = [];
  for (const [phase, checksOf] of Object.entries(phases)) {
    for await (const check of checksOf(parts)) {
      const { checked: more, findings } = await check();
      for (const name of counted) checked[name] += more[name] ?? 0;
      if (findings.length > 0) suspects.push({ check, findings });
      progress(phase, checked);
    }
  }
  for (let round = 0; round < recheck.rounds && suspects.length > 0; round += 1) {
    await sleep(recheck.milliseconds);
    const still: typeof suspects = [];
    for (const { check, findings: before } of suspects) {
      const { findings: now } = await check();
      // Only what was found before too: anything new would have to be read again as well.
      const findings = now.filter((finding) => before.some((other) => isSame(finding, other)));
      if (findings.length > 0) still.push({ check, findings });
      progress('what looks damaged', checked);
    }
    suspects = still;
  }
  return {
    checked,
    broken: await withoutPurged(
      parts,
      suspects.flatMap(({ findings }) => findings),
    ),
  };
}

/** Removes findings about tenants whose data is being deleted. */
async function withoutPurged({ database }: CheckParts, findings: readonly Finding[]): Promise<Finding[]> {
  const tenantIds = [...new Set(findings.map(({ tenantId }) => tenantId))];
  const purged = await database.systemRead((tx) => tenantsInPurge(tx, tenantIds));
  return findings.filter(({ tenantId }) => !purged.has(tenantId));
}

const isSame = (left: Finding, right: Finding): boolean => left.kind === right.kind && left.id === right.id;
