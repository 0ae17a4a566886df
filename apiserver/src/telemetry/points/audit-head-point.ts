// The point that anchors the end of an audit log.
import { AUDIT_HASH_KEY, AUDIT_SEQUENCE_KEY, auditLogId } from '@kellet/verify';
import { type HashText, leafHash } from './leaf-hashes.ts';
import { writePayload } from './payload.ts';

/** The end of a log. */
export interface AuditHead {
  readonly tenantId: string;
  readonly sequence: number;
  readonly hash: string;
}

/** What the point consists of. */
export interface AuditHeadPoint {
  /** The id of the log, which no device has. */
  readonly deviceId: string;
  readonly numericValues: Readonly<Record<string, number>>;
  readonly stringValues: Readonly<Record<string, string>>;
  readonly payload: string;
  readonly dataHash: HashText;
}

/** Returns the point of a head at a time, in seconds since 1970. */
export function auditHeadPoint({ tenantId, sequence, hash }: AuditHead, seconds: number): AuditHeadPoint {
  const deviceId = auditLogId(tenantId);
  const numericValues = { [AUDIT_SEQUENCE_KEY]: sequence };
  const stringValues = { [AUDIT_HASH_KEY]: hash };
  const payload = writePayload({ numericValues, stringValues });
  return { deviceId, numericValues, stringValues, payload, dataHash: leafHash(tenantId, deviceId, seconds, payload) };
}
