// State and constants shared by the parts of the demo.
import type { Kubectl } from '../clients/kubectl.ts';
import type { Rest } from '../clients/rest.ts';
import type { Fleet } from '../devices/fleet.ts';
import type { Promises } from './promises.ts';
import type { Terminal } from './terminal.ts';

/** Devices of the fleet. */
export const fleetSize = 50;
/** Readings that each device replays. */
export const readingsPerDevice = 112;
/** Share of the canary in examples/rollouts/. */
const canaryPercent = 20;
/** Devices of the canary. */
export const canarySize = (fleetSize * canaryPercent) / 100;

/** Promises that the demo checks. */
export const promiseTexts = {
  manifests: 'kubectl apply makes a profile, a template and two packages',
  claims: 'devices claim identities with the provision key',
  repeatedClaim: 'a repeated claim returns the same device and no key',
  ingest: 'at least 5,000 recorded points are accepted',
  rateLimit: 'the fleet stays within 1000 requests a minute',
  live: 'a subscriber receives every point of the watched device',
  history: 'history contains exactly what was sent',
  anchored: 'full batches are sealed, anchored, mined and proven',
  verified: 'a point is verified over REST, by hash and by values',
  offline: 'kellet-verify proves the bundle offline',
  refuted: 'the same bundle with one digit changed is refuted',
  canary: 'a canary of 20 % schedules exactly 10 devices',
  canarySucceeds: 'the canary succeeds despite interrupted downloads',
  completed: 'the rollout completes once raised to 100 %',
  paused: 'a failing rollout pauses beyond the threshold',
  nobodyElse: 'no further devices are scheduled',
  alert: 'an alert is published on the broker',
  rollback: 'a rollback restores the canary and completes',
  listed: 'kubectl get lists all resources',
  proven: 'every point and every result is proven at the end',
} as const;

export type PromiseKey = keyof typeof promiseTexts;

/** Context of the parts of the demo. */
export interface Scene {
  terminal: Terminal;
  promises: Promises<PromiseKey>;
  kubectl: Kubectl;
  /** The API as the tenant's administrator. */
  admin: Rest;
  fleet: Fleet;
  tenant: string;
  natsUrl: string;
  /** URL of the header source. */
  headersUrl: string;
  /** Base URL of the artifacts. */
  artifacts: string;
  /** Folder for output files. */
  folder: string;
  /** Set by provisioning. */
  provisionKey: string;
}
