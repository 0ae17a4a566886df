// Receives uploaded artifacts (`upload://`) in consecutive parts, and verifies the whole before the package can be used. An upload
// is made durable half a megabyte at a time, or 2 MiB outside of the database, so that a crash loses no more.
import { createHash } from 'node:crypto';
import type { UploadArtifactRequest } from '@kellet/proto/es/kellet/v1/ota_pb';
import type { Database } from '../../../platform/database/database.ts';
import { failedPrecondition, invalidArgument, KelletError } from '../../../platform/errors.ts';
import { type Pace, pace, TooSlowError } from '../../../platform/outbound/pace.ts';
import type { CallContext } from '../../../platform/rpc.ts';
import { uploadUri } from '../artifacts/artifact-fetch.ts';
import type { ArtifactIntake } from '../artifacts/artifact-intake.ts';
import { publishArtifact, receivedBytes, removeArtifact } from '../artifacts/artifact-store.ts';
import { judgePackage } from './package-judgement.ts';
import {
  announcePackage,
  awaitsArtifact,
  getPackage,
  lockPackage,
  type PackageRow,
  setPackageStatus,
  setStagingKey,
} from './package-store.ts';
import { type UploadRange, uploadRange } from './upload-range.ts';

/** An upload that takes longer than two hours is continued by another request. */
const uploadPace: Pace = {
  idleMilliseconds: 60_000,
  totalMilliseconds: 2 * 60 * 60_000,
  bytesPerSecond: 16 * 1024,
  graceMilliseconds: 60_000,
};

const aborted = (): KelletError =>
  new KelletError('ABORTED', 'another upload of this artifact is under way: ask how far it is and go on from there');

/** Receives artifacts. */
export class Uploads {
  private readonly database: Database;
  private readonly intake: ArtifactIntake;

  constructor(database: Database, intake: ArtifactIntake) {
    this.database = database;
    this.intake = intake;
  }

  /**
   * Receives the bytes of one request and returns the updated package. Throws NOT_FOUND; FAILED_PRECONDITION if the package is
   * not uploaded or the part leaves a gap; INVALID_ARGUMENT for more bytes than declared or another artifact than declared; ABORTED
   * if another request continues the same upload; RESOURCE_EXHAUSTED if the tenant has too many concurrent uploads or exceeds its
   * quota; DEADLINE_EXCEEDED if the bytes arrive too slowly; UNAVAILABLE if it gives way to another tenant. What has come is kept.
   */
  async receive(requests: AsyncIterable<UploadArtifactRequest>, context: CallContext): Promise<PackageRow> {
    const { tenantId } = context;
    try {
      return await this.intake.inTurn('upload', tenantId, context, (others) =>
        this.receiveInTurn(requests, context, others),
      );
    } catch (error) {
      if (!(error instanceof TooSlowError)) throw error;
      throw new KelletError('DEADLINE_EXCEEDED', `the upload is too slow: ${error.message}; what has come is kept`);
    }
  }

  private async receiveInTurn(
    requests: AsyncIterable<UploadArtifactRequest>,
    { tenantId, metadata }: CallContext,
    others: AbortSignal,
  ): Promise<PackageRow> {
    const limits = { ...uploadPace, ...this.intake.settings.pace };
    const iterator = pace(requests, limits, ({ content }) => content?.data.length ?? 0, others);
    const first = await iterator.next();
    if (first.done) throw invalidArgument('package_id is required');
    const { packageId } = first.value;
    const range = uploadRange(metadata.get('content-range'), first.value);
    const content = contentOf(first.value, iterator);

    const row = await this.begin(tenantId, packageId, range);
    if (!awaitsArtifact(row)) {
      totalOf(row, range, this.intake.settings.maximumBytes);
      await compare(row, range, content);
      return row;
    }
    const { held, digest } = await this.append(row, range, content);
    const isComplete = range.start === undefined || held === totalOf(row, range, this.intake.settings.maximumBytes);
    return isComplete ? this.complete(row, held, digest) : { ...row, received_bytes: BigInt(held) };
  }

  /** Returns the package, ready to receive the range. An upload of the whole artifact discards an earlier attempt. */
  private begin(tenantId: string, packageId: string, range: UploadRange): Promise<PackageRow> {
    return this.database.tenant(tenantId, async (tx) => {
      const { package_id } = await getPackage(tx, tenantId, packageId);
      await lockPackage(tx, tenantId, package_id);
      // Read under the lock: another request may have continued the upload.
      const row = await getPackage(tx, tenantId, package_id);
      if (row.artifact_uri !== uploadUri) {
        throw failedPrecondition(
          `the artifact of this package is not uploaded: its artifact_uri is ${row.artifact_uri}`,
        );
      }
      if (row.status !== 'rejected' && !awaitsArtifact(row)) return row;
      if (row.checksum_verified) throw failedPrecondition(`the package is rejected: ${row.message}`);
      const total = totalOf(row, range, this.intake.settings.maximumBytes);
      // Also undefined if the sweep has deleted it.
      const held = row.staging_key ? await receivedBytes(tx, tenantId, row.staging_key) : undefined;
      if ((range.start ?? 0) > (held ?? 0)) throw failedPrecondition(`the next part begins at byte ${held ?? 0}`);
      if (row.status === 'rejected') {
        await setPackageStatus(tx, tenantId, package_id, { status: 'uploading' });
        await announcePackage(tx, row);
      }
      if (range.start === undefined || held === undefined) {
        if (row.staging_key) await removeArtifact(tx, tenantId, row.staging_key);
        await setStagingKey(tx, tenantId, package_id, await this.intake.stage(tx, tenantId, total ?? 0));
      }
      return getPackage(tx, tenantId, package_id);
    });
  }

  /** Stores the new part of the content. Returns how many bytes are stored, and their checksum if all came in this request. */
  private async append(
    row: PackageRow,
    range: UploadRange,
    content: AsyncIterable<Buffer>,
  ): Promise<{ held: number; digest: Buffer | undefined }> {
    const { maximumBytes } = this.intake.settings;
    const total = totalOf(row, range, maximumBytes);
    const limit = range.end ?? total ?? maximumBytes;
    const start = Number(row.received_bytes);
    const writer = this.intake.writer(row.tenant_id, row.staging_key!, start);
    const hash = start === 0 ? createHash('sha256') : undefined;
    let at = range.start ?? 0;
    try {
      for await (const piece of content) {
        const fresh = piece.subarray(Math.max(0, Math.min(piece.length, start - at)));
        at += piece.length;
        if (at > limit) throw invalidArgument(`the body continues beyond byte ${limit}, where it should end`);
        hash?.update(fresh);
        await writer.write(fresh);
      }
    } finally {
      await writer.flush();
    }
    if (range.end !== undefined && at !== range.end) {
      throw invalidArgument(`the body has ${at - range.start!} bytes, Content-Range says ${range.end - range.start!}`);
    }
    if (range.start === undefined && total !== undefined && at !== total) {
      throw invalidArgument(`the artifact has ${at} bytes, size_bytes says ${total}`);
    }
    return { held: writer.held, digest: hash?.digest() };
  }

  /** Publishes a complete upload if it is the declared artifact, and judges the package. */
  private async complete(
    { tenant_id: tenantId, package_id: packageId, sha256, staging_key: key }: PackageRow,
    size: number,
    known: Buffer | undefined,
  ): Promise<PackageRow> {
    const digest = known ?? (await this.intake.reader.digest(tenantId, key!, size));
    const row = await this.database.tenant(tenantId, async (tx) => {
      await lockPackage(tx, tenantId, packageId);
      const locked = await getPackage(tx, tenantId, packageId);
      // Another request restarted or completed the upload.
      if (!locked.staging_key?.equals(key!) || Number(locked.received_bytes) !== size) {
        if (locked.status === 'available') return locked;
        throw aborted();
      }
      await setStagingKey(tx, tenantId, packageId, undefined);
      if (digest.equals(sha256)) {
        await publishArtifact(tx, tenantId, key!, sha256, size);
        await judgePackage(tx, tenantId, packageId);
      } else {
        await removeArtifact(tx, tenantId, key!);
        await setPackageStatus(tx, tenantId, packageId, {
          status: 'rejected',
          rejection: 'ChecksumMismatch',
          message: `checksum mismatch: the artifact's SHA-256 is ${digest.toString('hex')}`,
        });
      }
      await announcePackage(tx, locked);
      return getPackage(tx, tenantId, packageId);
    });
    if (row.status === 'rejected') throw invalidArgument(row.message);
    return row;
  }
}

/** Yields the bytes of an upload. Throws if the client disconnects. */
async function* contentOf(
  first: UploadArtifactRequest,
  rest: AsyncIterator<UploadArtifactRequest, void>,
): AsyncIterable<Buffer> {
  for (let next: IteratorResult<UploadArtifactRequest, void> = { value: first }; !next.done; next = await rest.next()) {
    const data = next.value.content?.data;
    if (data && data.length > 0) yield Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  }
}

/** Returns the size of the whole artifact as the package or the request states it, or undefined if neither does. */
function totalOf(row: PackageRow, range: UploadRange, maximumBytes: number): number | undefined {
  const declared = Number(row.size_bytes);
  if (declared !== 0 && range.total !== undefined && range.total !== declared) {
    throw invalidArgument(`the artifact has ${declared} bytes by its size_bytes, ${range.total} by the request`);
  }
  const total = declared || range.total;
  const greatest = total ?? maximumBytes;
  if (greatest > maximumBytes || (range.start ?? 0) > greatest || (range.end ?? 0) > greatest) {
    throw invalidArgument(`an artifact has at most ${Math.min(greatest, maximumBytes)} bytes here`);
  }
  return total;
}

/** Reads an upload of an artifact that is already stored. Throws INVALID_ARGUMENT if it is another one. */
async function compare(row: PackageRow, range: UploadRange, content: AsyncIterable<Buffer>): Promise<void> {
  const hash = createHash('sha256');
  let at = range.start ?? 0;
  for await (const piece of content) {
    at += piece.length;
    if (at > Number(row.size_bytes)) throw invalidArgument(`the artifact has ${row.size_bytes} bytes`);
    hash.update(piece);
  }
  if (range.start === undefined && !hash.digest().equals(row.sha256)) {
    throw invalidArgument('checksum mismatch: the package has another artifact already');
  }
}
