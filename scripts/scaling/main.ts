// Computes the size of an installation from measured costs: without flags for fleets of 1,000 to 10 million devices, as the page
// docs/scaling.md; with flags for one plan.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { parse } from 'yaml';
import { scalingPage, sizingTable, standardPlan } from './page.ts';
import type { Costs, Plan } from './sizing.ts';

const costs = parse(readFileSync(join(import.meta.dirname, 'costs.yaml'), 'utf8')) as Costs;

/** --point-seconds for pointSeconds. */
const flagOf = (key: string): string => key.replaceAll(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
const keys = Object.keys(standardPlan) as (keyof Plan)[];

const { values } = parseArgs({
  options: {
    page: { type: 'boolean' },
    ...Object.fromEntries(keys.map((key) => [flagOf(key), { type: 'string' as const }])),
  },
});
const given = values as Record<string, string | boolean | undefined>;

if (given['page']) process.stdout.write(scalingPage(costs));
else {
  const plan = Object.fromEntries(
    keys.map((key) => {
      const text = given[flagOf(key)] ?? String(standardPlan[key]);
      const isZeroAllowed = key === 'pollSeconds' || key === 'artifactMegabytes';
      const value = Number(text);
      if (!Number.isFinite(value) || value < 0 || (value === 0 && !isZeroAllowed)) {
        console.error(`--${flagOf(key)} must be a number above 0`);
        process.exit(2);
      }
      return [key, value];
    }),
  ) as unknown as Plan;
  for (const key of keys) console.log(`${flagOf(key).padEnd(20)} ${plan[key].toLocaleString('en')}`);
  console.log(`\n${sizingTable([plan], costs)}`);
}
