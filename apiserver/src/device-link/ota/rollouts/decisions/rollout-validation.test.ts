import { readFileSync } from 'node:fs';
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { CreateRolloutRequestSchema } from '@kellet/proto/es/kellet/v1/ota_pb';
import { expect } from 'chai';
import { parse } from 'yaml';
import type { Exclusion } from './cohort.ts';
import { fleetProblem, rolloutProblem } from './rollout-validation.ts';

type Request = MessageInitShape<typeof CreateRolloutRequestSchema>;

interface Schema {
  readonly properties: Readonly<Record<string, Schema>>;
  readonly items: Schema;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly maxItems?: number;
}

const problemOf = (change: Request): string | undefined =>
  rolloutProblem(
    create(CreateRolloutRequestSchema, {
      packageId: 'a',
      targetProfileId: 'b',
      canaryPercent: 1,
      ...change,
    }),
  );

describe('limits of a rollout', () => {
  const text = readFileSync(new URL('../../../../../../crds/ota-rollout.yaml', import.meta.url), 'utf8');
  const { spec } = (parse(text) as { spec: { versions: { schema: { openAPIV3Schema: Schema } }[] } }).spec.versions[0]!
    .schema.openAPIV3Schema.properties as { spec: Schema };
  const step = (fields: object): Request => ({ steps: [{ percent: 2, ...fields }] });
  // What is 0 in a request is left out of the manifest.
  const limits: [string, Schema, least: number | undefined, (value: number) => Request][] = [
    ['canary_percent', spec.properties['canaryPercent']!, 1, (canaryPercent) => ({ canaryPercent })],
    [
      'failure_threshold_percent',
      spec.properties['failureThresholdPercent']!,
      0,
      (failureThresholdPercent) => ({ failureThresholdPercent }),
    ],
    ['min_failures', spec.properties['minFailures']!, 1, (minFailures) => ({ minFailures })],
    ['max_per_minute', spec.properties['maxPerMinute']!, undefined, (maxPerMinute) => ({ maxPerMinute })],
    [
      'device_timeout_seconds',
      spec.properties['deviceTimeoutSeconds']!,
      undefined,
      (deviceTimeoutSeconds) => ({ deviceTimeoutSeconds }),
    ],
    ['max_attempts', spec.properties['maxAttempts']!, undefined, (maxAttempts) => ({ maxAttempts })],
    [
      'steps[0].percent',
      spec.properties['steps']!.items.properties['percent']!,
      undefined,
      (percent) => step({ percent }),
    ],
    [
      'steps[0].soak_seconds',
      spec.properties['steps']!.items.properties['soakSeconds']!,
      0,
      (soakSeconds) => step({ soakSeconds }),
    ],
  ];
  it('counts the characters of a name, as Kubernetes does', () => {
    const problem = 'name must be at most 253 characters';
    expect(problemOf({ name: '😀'.repeat(253) })).to.equal(undefined);
    expect(problemOf({ name: '😀'.repeat(254) })).to.equal(problem);
    expect(problemOf({ name: 'x'.repeat(254) })).to.equal(problem);
  });

  for (const [field, schema, least, change] of limits) {
    it(`are those of the definition: ${field}`, () => {
      expect(problemOf(change(schema.maximum!))).to.equal(undefined);
      expect(problemOf(change(schema.maximum! + 1))).to.match(
        new RegExp(`^${field.replaceAll(/[[\].]/g, '\\$&')} must`),
      );
      if (least === undefined) return;
      expect(schema.minimum).to.equal(least);
      expect(problemOf(change(least))).to.equal(undefined);
      if (least > 0) expect(problemOf(change(least - 1))).to.match(new RegExp(`^${field} must`));
    });
  }

  it('are those of the definition: steps', () => {
    const steps = (count: number): Request => ({
      steps: Array.from({ length: count }, (_, index) => ({ percent: index + 2 })),
    });
    expect(problemOf(steps(spec.properties['steps']!.maxItems!))).to.equal(undefined);
    expect(problemOf(steps(spec.properties['steps']!.maxItems! + 1))).to.match(/^steps must/);
  });
});

describe('a fleet that cannot take a package', () => {
  const fleet = (eligible: number, ...reasons: Exclusion[]) => ({
    eligible,
    excludedCounts: Object.fromEntries(reasons.map((reason) => [reason, 1])),
  });
  const cases: [string, ReturnType<typeof fleet>, boolean][] = [
    ['is one where no hardware id matches', fleet(0, 'hardware_id'), true],
    ['is one that has later versions', fleet(0, 'downgrade'), true],
    ['is one of other hardware and later versions', fleet(0, 'hardware_id', 'downgrade'), true],
    ['is not one with some later versions', fleet(1, 'downgrade'), false],
    [
      'is not one of which some have a later version and some too old a one',
      fleet(0, 'downgrade', 'below_min_version'),
      false,
    ],
    ['is not an empty one: devices may join', fleet(0), false],
    ['is not one with an eligible device', fleet(1, 'hardware_id'), false],
    ['is not one that has the version already', fleet(0, 'hardware_id', 'already_on_version'), false],
    ['is not one that may be updated first', fleet(0, 'below_min_version'), false],
    ['is not one with an assignment of its own', fleet(0, 'device_override'), false],
  ];
  for (const [name, given, isRefused] of cases) {
    it(name, () => expect(fleetProblem(given) !== undefined).to.equal(isRefused));
  }
});
