// The result of an update or a rollback as a device reported it: a point of the device in a key space that only the service
// writes. Telemetry anchors it (telemetry/ingest/update-results.ts).
import { canonicalPayload, leafHash } from '@kellet/verify';
import { newId } from '../../../platform/ids.ts';
import type { PackageRow } from '../packages/package-store.ts';
import type { NewResult } from './stores/result-store.ts';

/** A terminal report and the package it is about. */
export interface ReportedResult {
  readonly deviceId: string;
  /** Empty for an assignment of the device's own. */
  readonly rolloutId: string;
  readonly result: 'successful' | 'failure' | 'rolled_back';
  readonly package_: Pick<PackageRow, 'package_id' | 'type' | 'version' | 'sha256'> | undefined;
  /** The version that the device reports; empty if it did not say. */
  readonly reportedVersion: string;
  readonly error: string;
}

/** Maximum length of an error in UTF-16 units; three bytes each at most, so it fits into a value of a point. */
const maxErrorLength = 1000;

/** Returns the row of a result: its point, and the hash by which it is anchored. */
export function newResult(tenantId: string, reported: ReportedResult, now: Date): NewResult {
  const { deviceId, rolloutId, result, package_, reportedVersion, error } = reported;
  const resultId = newId();
  const values: Record<string, string> = {
    'kellet.ota.result_id': resultId,
    'kellet.ota.result': result,
    'kellet.ota.rollout_id': rolloutId,
    'kellet.ota.package_id': package_?.package_id ?? '',
    'kellet.ota.package_type': package_?.type ?? '',
    'kellet.ota.package_version': package_?.version ?? '',
    'kellet.ota.package_sha256': package_?.sha256.toString('hex') ?? '',
    'kellet.ota.reported_version': reportedVersion,
    'kellet.ota.error': error.slice(0, maxErrorLength).toWellFormed(),
  };
  const payload = canonicalPayload({}, Object.fromEntries(Object.entries(values).filter(([, value]) => value !== '')));
  const timestampSeconds = Math.floor(now.getTime() / 1000);
  const dataHash = Buffer.from(leafHash({ tenantId, deviceId, timestampSeconds, payload }));
  return { resultId, rolloutId, deviceId, time: BigInt(now.getTime()) * 1_000_000n, payload, dataHash };
}

/** What distinguishes one result of a device from its next. */
export const sameResult = (a: string, b: string): boolean => withoutId(a) === withoutId(b);

const withoutId = (payload: string): string => payload.replace(/"kellet\.ota\.result_id":"[^"]*"/, '');
