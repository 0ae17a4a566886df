// What the parts of the story share.
import type { Fleet } from '../devices/fleet.ts';
import type { Kubectl } from '../clients/kubectl.ts';
import type { Rest } from '../clients/rest.ts';
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

/** Every promise that the story puts to the test. */
export const promiseTexts = {
  manifests: 'kubectl apply makes a profile, a template and two packages',
  claims: 'devices claim identities with the provision key',
  repeatedClaim: 'a repeated claim gives the same device and no key',
  ingest: 'at least 5,000 recorded points are accepted',
  rateLimit: 'the fleet stays within 1000 requests a minute',
  live: 'a subscriber sees every point of the watched device',
  history: 'history holds exactly what was sent',
  anchored: 'full batches are sealed, anchored, mined and proven',
  verified: 'a point is verified over REST, by hash and by values',
  offline: 'kellet-verify proves the bundle without network',
  refuted: 'the same bundle with one digit changed is refuted',
  canary: 'a canary of 20 % schedules 10 devices and nobody else',
  canarySucceeds: 'all of the canary succeed, over connections cut once',
  completed: 'raised to 100 % the rollout completes',
  paused: 'a failing rollout pauses itself past the threshold',
  nobodyElse: 'nobody else is scheduled',
  alert: 'the alert is on the broker',
  rollback: 'rollback brings the canary back and completes',
  listed: 'kubectl get shows all of it',
  proven: 'in the end every accepted point is proven',
} as const;

export type PromiseKey = keyof typeof promiseTexts;

/** Everything a part of the story works with. */
export interface Scene {
  terminal: Terminal;
  promises: Promises<PromiseKey>;
  kubectl: Kubectl;
  /** The API as the tenant's administrator. */
  admin: Rest;
  fleet: Fleet;
  tenant: string;
  natsUrl: string;
  /** Where block headers come from. */
  headersUrl: string;
  /** Base URL of the artifacts. */
  artifacts: string;
  /** Folder for what the demo leaves behind. */
  folder: string;
  /** Set by provisioning. */
  provisionKey: string;
}
