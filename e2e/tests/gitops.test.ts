// Kellet with GitOps tools: health as evaluated by Argo CD, and a loop that keeps applying the same manifests.
import { setTimeout as sleep } from 'node:timers/promises';
import { expect } from 'chai';
import type { Kubectl } from '../../dev/clients/kubectl.ts';
import { argocdProgram } from '../../dev/stack/programs/binaries.ts';
import { waitUntil } from '../../dev/stack/wait.ts';
import { argocdHealth } from '../testing/argocd.ts';
import { admin, kubectl, makeArtifact, makeFleet, makeProfile, type Rollout, unique } from '../testing/fixtures.ts';

const apiVersion = 'kellet.dev/v1alpha1';

interface Resource {
  kind: string;
  metadata: { name: string; generation: number; managedFields?: { manager: string; operation: string }[] };
  spec: object;
  status?: { phase?: string; rolloutId?: string; observedGeneration?: number; counts?: { scheduled?: number } };
}

/** Builds a resource with these conditions; `True` conditions have no message. */
const judged = (kind: string, conditions: string[], status: object = {}, generation = 1) => ({
  apiVersion,
  kind,
  metadata: { name: 'judged', namespace: 'default', generation },
  spec: {},
  status: {
    observedGeneration: 1,
    conditions: conditions.map((text) => {
      const [type, value, reason, ...message] = text.split(' ');
      return { type, status: value, reason, message: message.join(' ') };
    }),
    ...status,
  },
});

describe('GitOps', function () {
  this.timeout(120_000);

  before(async function () {
    // The first build takes minutes.
    this.timeout(30 * 60_000);
    await argocdProgram((line) => console.log(`    ${line}`));
  });

  describe('health in Argo CD', () => {
    const paused = (reason: string) => ({
      phase: 'Paused',
      pauseConditions: [{ reason, startTime: '2026-01-01T00:00:00Z' }],
    });
    const cases: [string, object, string, RegExp][] = [
      ['a new resource', { ...judged('DeviceProfile', []), status: undefined }, 'Progressing', /operator/],
      [
        'a resource changed since the last reconcile',
        judged('OtaPackage', ['Ready True Ready'], {}, 2),
        'Progressing',
        /operator/,
      ],
      ['a profile in use', judged('DeviceProfile', ['Ready True Synced known']), 'Healthy', /^known$/],
      [
        'a template without its profile',
        judged('ProvisioningTemplate', ['Ready False ReferenceNotFound no DeviceProfile x']),
        'Progressing',
        /DeviceProfile x/,
      ],
      [
        'a used key',
        judged('ProvisioningTemplate', ['Ready True KeyUsed the key has been used']),
        'Healthy',
        /has been used/,
      ],
      [
        'an artifact with a different checksum',
        judged('OtaPackage', ['Ready False ChecksumMismatch another', 'Stalled True ChecksumMismatch another']),
        'Degraded',
        /another/,
      ],
      [
        'an artifact that could not be fetched',
        judged('OtaPackage', ['Ready False FetchFailed timeout']),
        'Progressing',
        /timeout/,
      ],
      ['a namespace without a tenant', judged('OtaPackage', ['Ready False NoTenant no label']), 'Degraded', /label/],
      ['a namespace of another tenant', judged('Tenant', ['Ready False NamespaceConflict taken']), 'Degraded', /taken/],
      [
        'a running rollout',
        judged('OtaRollout', ['Accepted True Accepted', 'Ready False RollingOut 2 of 20'], { phase: 'Active' }),
        'Progressing',
        /2 of 20/,
      ],
      [
        'a rollout paused automatically',
        judged(
          'OtaRollout',
          ['Accepted True Accepted', 'Ready False FailureThresholdExceeded 50 % failed'],
          paused('FailureThresholdExceeded'),
        ),
        'Degraded',
        /50 %/,
      ],
      [
        'a rollout paused by a command',
        judged('OtaRollout', ['Accepted True Accepted', 'Ready False OperatorPause paused'], paused('OperatorPause')),
        'Suspended',
        /paused/,
      ],
      [
        'a rollout that waits for approval',
        judged('OtaRollout', ['Accepted True Accepted', 'Ready False StepApproval 50 %'], paused('StepApproval')),
        'Suspended',
        /50 %/,
      ],
      [
        'a rollout held by its manifest',
        judged('OtaRollout', ['Accepted True Accepted', 'Ready False HeldBySpec held'], { phase: 'Paused' }),
        'Suspended',
        /held/,
      ],
      [
        'a rollout that succeeded',
        judged('OtaRollout', ['Ready True Succeeded all'], { phase: 'Completed', outcome: 'Succeeded' }),
        'Healthy',
        /all/,
      ],
      [
        'a rollout that was rolled back',
        judged('OtaRollout', ['Ready False RolledBack back'], { phase: 'Completed', outcome: 'RolledBack' }),
        'Degraded',
        /back/,
      ],
      [
        'a rollout that waits for another one',
        judged('OtaRollout', ['Accepted False RolloutInProgress waits for x', 'Ready False RolloutInProgress waits']),
        'Progressing',
        /waits/,
      ],
    ];
    for (const [what, resource, status, message] of cases) {
      it(`reports ${status} for ${what}`, async () => {
        const health = await argocdHealth(resource);
        expect(health.status).to.equal(status);
        expect(health.message).to.match(message);
      });
    }
  });

  describe('repeatedly applied manifests', () => {
    for (const [tool, args] of [
      ['kubectl apply', ['apply']],
      ['server-side apply', ['apply', '--server-side', '--field-manager=argocd-controller', '--force-conflicts']],
    ] as const) {
      it(`neither un-pause, restart nor interfere with a rollout, with ${tool}`, async () => {
        const rest = await admin();
        const kube = await kubectl();
        const profile = await makeProfile(rest);
        const fleet = await makeFleet(rest, profile.profile_id, 4);
        const name = unique('looped');
        const { uri, sha256, sizeBytes } = await makeArtifact();
        const manifests = [
          {
            apiVersion,
            kind: 'OtaPackage',
            metadata: { name },
            spec: {
              type: 'Firmware',
              version: '2.0.0',
              artifact: { uri, sha256, sizeBytes },
              compatibility: { deviceType: profile.type },
            },
          },
          {
            apiVersion,
            kind: 'OtaRollout',
            metadata: { name },
            spec: { packageRef: { name }, targetProfileRef: { name: profile.name }, canaryPercent: 50 },
          },
        ];
        const loop = new ApplyLoop(kube, args, manifests);
        try {
          const get = () => kube.json<Resource>(['get', 'otaro', name]);
          const until = (phase: string) =>
            waitUntil(async () => loop.checked(await get().catch(() => undefined))?.status?.phase === phase, {
              what: `phase ${phase}`,
              timeoutMilliseconds: 30_000,
            });
          await until('Active');
          const { status } = await get();
          const verbs = `/api/v1/ota/rollouts/${status!.rolloutId!}`;
          expect((await argocdHealth(await get())).status).to.equal('Progressing');
          await rest.post(`${verbs}/pause`);
          await until('Paused');
          await loop.rounds(4);
          expect((await get()).status?.phase).to.equal('Paused');
          expect((await argocdHealth(await get())).status).to.equal('Suspended');
          fleet.start();
          await rest.post(`${verbs}/resume`, { canary_percent: 100 });
          await until('Completed');
          await loop.rounds(4);
          const done = await get();
          expect((await argocdHealth(done)).status).to.equal('Healthy');
          expect(done.metadata.generation, 'the spec was changed').to.equal(1);
          expect(done.status?.counts?.scheduled).to.equal(4);
          expect(await rest.get<Rollout>(verbs)).to.include({ status: 'completed', outcome: 'succeeded' });
          for (const device of fleet.devices) {
            expect(device.commands.filter(({ method }) => method === 'ota_start')).to.have.length(1);
          }
        } finally {
          await loop.stop();
          await fleet.stop();
        }
      });
    }
  });
});

/** A tool that keeps applying the same manifests. */
class ApplyLoop {
  private readonly stopping = new AbortController();
  private readonly running: Promise<void>;
  private applied = 0;
  private failure: Error | undefined;

  constructor(kube: Kubectl, args: readonly string[], manifests: readonly object[]) {
    const text = manifests.map((manifest) => JSON.stringify(manifest)).join('\n---\n');
    this.running = (async () => {
      while (!this.stopping.signal.aborted) {
        await kube.run([...args, '--filename', '-'], text);
        this.applied += 1;
        await sleep(200);
      }
    })().catch((error: unknown) => void (this.failure = error as Error));
  }

  /** Waits for this many more rounds. */
  async rounds(count: number): Promise<void> {
    const target = this.applied + count;
    await waitUntil(() => this.checked(this.applied) >= target, {
      what: `${count} rounds of apply`,
      timeoutMilliseconds: 60_000,
    });
  }

  /** Returns the value. Throws the error that stopped the loop, for example a conflict. */
  checked<Value>(value: Value): Value {
    if (this.failure) throw this.failure;
    return value;
  }

  async stop(): Promise<void> {
    this.stopping.abort();
    await this.running;
  }
}
