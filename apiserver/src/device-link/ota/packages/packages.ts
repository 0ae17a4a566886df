// Packages of the API and of manifests. An artifact is verified in the content store before its package can be used: for REST
// before the resource is created, for a manifest in the background.
import { isDeepStrictEqual } from 'node:util';
import type { MessageInitShape } from '@bufbuild/protobuf';
import { timestampFromDate } from '@bufbuild/protobuf/wkt';
import type { ObjectMeta, OtaPackageObservedSchema } from '@kellet/proto/es/kellet/control/v1/control_pb';
import {
  type CreatePackageRequest,
  type ListPackagesRequest,
  type ListPackagesResponseSchema,
  OtaPackage_Status,
  OtaPackage_StatusSchema,
  OtaPackage_Type,
  OtaPackage_TypeSchema,
  type OtaPackageSchema,
  type UpdatePackageRequest,
  type UploadArtifactRequest,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { takeUp } from '../../../control/applied-versions.ts';
import { type Applied, type Applier, type LastStep, type Refusal, RefusalError } from '../../../control/applier.ts';
import { notifyChanged } from '../../../control/changes.ts';
import { inManifest } from '../../../control/field-names.ts';
import { requestOf, specOf, type Specs } from '../../../control/manifest-mapping.ts';
import type { Database, Transaction } from '../../../platform/database/database.ts';
import { failedPrecondition, invalidArgument, KelletError } from '../../../platform/errors.ts';
import { namedId } from '../../../platform/ids.ts';
import type { Logger } from '../../../platform/observability/logger.ts';
import type { Registry } from '../../../platform/observability/metrics.ts';
import { enumFilter } from '../../../platform/requests/enums.ts';
import type { Paging } from '../../../platform/requests/paging.ts';
import type { CallContext } from '../../../platform/rpc.ts';
import { listSized } from '../../../platform/statements/sized-rows.ts';
import { trustedSigningKeys } from '../../../policies/tenant-reader.ts';
import { nameTaken, resourceName } from '../../../resources/resource-names.ts';
import type { ResourceWriter } from '../../../resources/resource-writer.ts';
import { ArtifactError } from '../artifacts/artifact-error.ts';
import { uploadUri } from '../artifacts/artifact-fetch.ts';
import { ArtifactIntake, type IntakeSettings } from '../artifacts/artifact-intake.ts';
import type { ArtifactReader } from '../artifacts/artifact-reader.ts';
import { readCredentials, type SourceCredentials } from '../artifacts/source-credentials.ts';
import { judgePackage } from './package-judgement.ts';
import {
  announcePackage,
  awaitDeletion,
  awaitsArtifact,
  beginAnew,
  findNamesake,
  findPackage,
  findPackageByResource,
  getPackage,
  isVerifiedSource,
  listPackages,
  listSignedPackages,
  lockPackage,
  markPackageDeleted,
  noteFetchFailure,
  type PackageRow,
  packageUse,
  setPackageStatus,
  upsertPackage,
} from './package-store.ts';
import { updatePackage } from './package-update.ts';
import { packageProblem } from './package-validation.ts';
import { isSigned, signatureState } from './signature.ts';
import { Uploads } from './uploads.ts';

/** Packages of a page that waits for no turn: release notes take up to 16 KiB. */
const smallPage = 100;

type OtaPackage = MessageInitShape<typeof OtaPackageSchema>;
type Observed = MessageInitShape<typeof OtaPackageObservedSchema>;

/** Delay before a failed fetch is retried: 5 s, 10 s, 20 s … at most 5 minutes. The operator's next Apply retries it. */
const retryDelay = (attempts: number): number => Math.min(5_000 * 2 ** Math.max(0, attempts - 1), 300_000);

/** Called in the transaction that changes which devices a package is compatible with. */
export type CompatibilityListener = (tx: Transaction, tenantId: string, packageId: string) => Promise<void>;

/** Packages of the API and of manifests. */
export class Packages implements Applier<Specs['OtaPackage'], Observed> {
  private readonly database: Database;
  private readonly writer: ResourceWriter;
  private readonly paging: Paging;
  private readonly logger: Logger;
  private readonly compatibilityChanged: CompatibilityListener;
  private readonly intake: ArtifactIntake;
  /** Reads artifacts. */
  readonly reader: ArtifactReader;
  private readonly uploads: Uploads;
  private readonly closing = new AbortController();
  /** Fetches under way in this process, by tenant and package. */
  private readonly fetches = new Map<string, Promise<void>>();

  constructor(parts: {
    database: Database;
    writer: ResourceWriter;
    paging: Paging;
    logger: Logger;
    artifacts: IntakeSettings;
    compatibilityChanged: CompatibilityListener;
    metrics?: Registry;
  }) {
    this.database = parts.database;
    this.writer = parts.writer;
    this.paging = parts.paging;
    this.logger = parts.logger;
    this.compatibilityChanged = parts.compatibilityChanged;
    this.intake = new ArtifactIntake(parts.database, parts.logger, parts.artifacts, parts.metrics);
    this.reader = this.intake.reader;
    this.uploads = new Uploads(parts.database, this.intake);
  }

  /**
   * Fetches and verifies the artifact, then writes the custom resource. Throws INVALID_ARGUMENT for a mismatch, which leaves
   * nothing. A package whose artifact is uploaded is created at once and waits for it.
   */
  async create(request: CreatePackageRequest, context: CallContext): Promise<OtaPackage> {
    const { guard, maximumBytes } = this.intake.settings;
    const problem = packageProblem(request, guard);
    if (problem) throw invalidArgument(problem);
    if (request.sizeBytes > maximumBytes) {
      throw invalidArgument(`size_bytes must be at most ${maximumBytes}, the greatest size of an artifact here`);
    }
    const type = request.type === OtaPackage_Type.sw ? 'sw' : 'fw';
    const deviceType = request.compatibility?.deviceType ?? '';
    const displayName = request.name || [type, request.version, deviceType].filter((part) => part !== '').join('-');
    const sha256 = Buffer.from(request.sha256, 'hex');
    await this.database.tenant(context.tenantId, async (tx) => {
      const taken =
        (await findNamesake(tx, context.tenantId, displayName)) ??
        (await findPackageByResource(tx, context.tenantId, resourceName(displayName)));
      if (taken) throw nameTaken('package', displayName, taken.display_name);
      const trusted = await trustedSigningKeys(tx, context.tenantId);
      if (signatureState(request.signature, sha256, trusted) === 'wrong') {
        throw invalidArgument('signature is not one of the artifact by any of the tenant’s trusted signing keys');
      }
    });
    if (request.artifactUri !== uploadUri) {
      // Also if the tenant's store has the artifact: the address must serve what was declared.
      const declared = { sha256, sizeBytes: request.sizeBytes };
      await this.intake.fetch(context.tenantId, request.artifactUri, declared, context).catch((error: unknown) => {
        throw error instanceof ArtifactError ? invalidArgument(error.message) : error;
      });
    }
    const spec = specOf('OtaPackage', { ...request, sha256: request.sha256.toLowerCase() });
    const resource = { kind: 'OtaPackage', displayName, spec } as const;
    return this.writer.create(context, resource, async (tx, id) =>
      toPackage(await getPackage(tx, context.tenantId, id)),
    );
  }

  /** Returns a package. Throws NOT_FOUND. */
  get(tenantId: string, packageId: string): Promise<OtaPackage> {
    return this.database.read(tenantId, async (tx) => toPackage(await getPackage(tx, tenantId, packageId)));
  }

  /** Returns a page of packages in order of creation. */
  async list(
    request: ListPackagesRequest,
    tenantId: string,
  ): Promise<MessageInitShape<typeof ListPackagesResponseSchema>> {
    const filter = {
      type: enumFilter('type', OtaPackage_TypeSchema, request.type),
      status: enumFilter('status', OtaPackage_StatusSchema, request.status),
    };
    const { items, nextPageToken } = await listSized({ database: this.database, paging: this.paging }, request, {
      scope: [tenantId, 'packages', filter],
      smallPage,
      cursorOf: (row: PackageRow) => row.package_id,
      read: (tx, after, room) => listPackages(tx, tenantId, filter, after, room),
      toItem: toPackage,
    });
    return { packages: items, nextPageToken };
  }

  /** Changes the mutable fields of a package. */
  async update(request: UpdatePackageRequest, context: CallContext): Promise<OtaPackage> {
    const { guard } = this.intake.settings;
    await updatePackage({ database: this.database, writer: this.writer, guard }, request, context);
    return this.get(context.tenantId, request.packageId);
  }

  /** Receives bytes of an uploaded artifact. */
  async upload(requests: AsyncIterable<UploadArtifactRequest>, context: CallContext): Promise<OtaPackage> {
    return toPackage(await this.uploads.receive(requests, context));
  }

  /** Deletes the resource. Throws FAILED_PRECONDITION while a rollout or a device's own assignment uses the package. */
  async delete(packageId: string, context: CallContext): Promise<void> {
    const { tenantId } = context;
    const row = await this.database.read(tenantId, async (tx) => {
      const found = await getPackage(tx, tenantId, packageId);
      const use = await packageUse(tx, tenantId, found.package_id);
      if (use !== undefined) throw failedPrecondition(use);
      return found;
    });
    if (await this.writer.remove(context, 'OtaPackage', row.name)) return;
    // Without a resource, which went with its namespace, only the row is left.
    const use = await this.removeRow(tenantId, row.package_id, 'refuse');
    if (use !== undefined) throw failedPrecondition(use);
  }

  async apply(meta: ObjectMeta, spec: Specs['OtaPackage'], last?: LastStep): Promise<Applied<Observed>> {
    const { tenantId } = meta;
    const packageId = namedId(tenantId, 'package', meta.name);
    const stated = { ...requestOf('OtaPackage', spec), name: meta.name };
    const problem = packageProblem(stated, this.intake.settings.guard);
    if (problem) throw new RefusalError('InvalidSpec', problem);
    const credentials = spec.artifactCredentials && readCredentials(spec.artifactCredentials);
    if (typeof credentials === 'string') {
      throw new RefusalError('FetchFailed', `artifactSecretRef: the Secret ${credentials}`);
    }
    const type = stated.type === OtaPackage_Type.sw ? 'sw' : 'fw';
    const { version, artifactUri, signature, sizeBytes, releaseNotes } = stated;
    const sha256 = Buffer.from(stated.sha256, 'hex');
    const row = await this.database.tenant(tenantId, async (tx) => {
      const isCreation = await takeUp(tx, 'OtaPackage', meta);
      const before = await lockPackage(tx, tenantId, packageId);
      if (before && !before.sha256.equals(sha256)) {
        throw new RefusalError(
          'Immutable',
          `a package of this name had another artifact (SHA-256 ${before.sha256.toString('hex')}): its id is bound to it for life`,
        );
      }
      if (before && (before.type !== type || before.version !== version)) {
        throw new RefusalError('Immutable', `a package of this name is ${before.type} ${before.version}`);
      }
      const compatibility = {
        device_type: stated.compatibility?.deviceType ?? '',
        min_version: stated.compatibility?.minVersion ?? '',
        max_version: stated.compatibility?.maxVersion ?? '',
        hardware_id_pattern: stated.compatibility?.hardwareIdPattern ?? '',
      };
      await upsertPackage(tx, tenantId, {
        packageId,
        name: meta.name,
        displayName: meta.displayName || meta.name,
        type,
        version,
        artifactUri,
        sha256,
        signature,
        sizeBytes,
        compatibility,
        releaseNotes,
      });
      if (before && !isDeepStrictEqual(before.compatibility, compatibility))
        await this.compatibilityChanged(tx, tenantId, packageId);
      if (before?.deleted_at) await beginAnew(tx, tenantId, packageId, sizeBytes);
      const current = await getPackage(tx, tenantId, packageId);
      // A request has fetched its artifact already. That of a manifest is fetched first, also if the store has it: its address must
      // serve what was declared, once for all packages.
      const isChecked =
        isCreation ||
        artifactUri === uploadUri ||
        current.checksum_verified ||
        (await isVerifiedSource(tx, tenantId, artifactUri, sha256));
      if (isChecked) await judgePackage(tx, tenantId, packageId);
      const judged = isChecked ? await getPackage(tx, tenantId, packageId) : current;
      // A manifest keeps the row with the refusal in it; a refused request leaves nothing.
      const refusal = isCreation ? refusalOf(judged) : undefined;
      if (refusal) throw new RefusalError(refusal.reason, refusal.message);
      await last?.(tx);
      return judged;
    });
    // Its next Apply, by the operator, has the credentials.
    const isWaiting = spec.artifactSecretRef !== undefined && credentials === undefined;
    if (awaitsArtifact(row) && row.artifact_uri !== uploadUri && !isWaiting) this.startFetch(meta, row, credentials);
    return { id: packageId, observed: observedOf(row), refusal: refusalOf(row) };
  }

  async remove(meta: ObjectMeta, detach: boolean): Promise<Refusal | undefined> {
    const use = await this.removeRow(
      meta.tenantId,
      namedId(meta.tenantId, 'package', meta.name),
      detach ? 'force' : 'await',
    );
    return use === undefined ? undefined : { reason: 'InUse', message: use };
  }

  /**
   * Marks a package deleted, and removes its artifact unless another package has it too. Returns what uses the package, which
   * then stays; with `await` it gains no new uses, with `force` it is deleted anyway.
   */
  private async removeRow(
    tenantId: string,
    packageId: string,
    whenUsed: 'refuse' | 'await' | 'force',
  ): Promise<string | undefined> {
    const { use, sha256 } = await this.database.tenant(tenantId, async (tx) => {
      // Waits for a rollout or an assignment that is being created, because it holds the package.
      await lockPackage(tx, tenantId, packageId);
      const use = whenUsed === 'force' ? undefined : await packageUse(tx, tenantId, packageId);
      if (use !== undefined && whenUsed === 'await') await awaitDeletion(tx, tenantId, packageId);
      return { use, sha256: use === undefined ? await markPackageDeleted(tx, tenantId, packageId) : undefined };
    });
    if (sha256) this.intake.removeUnused(tenantId, sha256);
    return use;
  }

  /** Judges the signed packages of a tenant again, whose trusted keys may have changed. */
  async judgeSignatures(tenantId: string): Promise<void> {
    const packageIds = await this.database.read(tenantId, (tx) => listSignedPackages(tx, tenantId));
    for (const packageId of packageIds) {
      await this.database.tenant(tenantId, async (tx) => {
        const row = await lockPackage(tx, tenantId, packageId);
        if (!row || row.deleted_at) return;
        if (await judgePackage(tx, tenantId, packageId)) await announcePackage(tx, row);
      });
    }
  }

  /** Starts sweeping artifacts that no package refers to. */
  async start(): Promise<void> {
    this.intake.start();
  }

  /** Ends fetches under way. The next Apply starts them again. */
  async stop(): Promise<void> {
    this.closing.abort();
    await Promise.all(this.fetches.values());
    await this.intake.stop();
  }

  /** Fetches a manifest's artifact in the background, once at a time, and notifies the operator of the result. */
  private startFetch(meta: ObjectMeta, row: PackageRow, credentials: SourceCredentials | undefined): void {
    const key = `${row.tenant_id}/${row.package_id}`;
    const failedAt = row.fetch_failed_at?.getTime() ?? 0;
    if (this.closing.signal.aborted || this.fetches.has(key) || Date.now() < failedAt + retryDelay(row.fetch_attempts))
      return;
    const running = this.fetchInBackground(meta, row, credentials)
      .catch((error: unknown) => this.logger.warn({ err: error, package: row.name }, 'artifact could not be stored'))
      .finally(() => this.fetches.delete(key));
    this.fetches.set(key, running);
  }

  private async fetchInBackground(
    meta: ObjectMeta,
    row: PackageRow,
    credentials: SourceCredentials | undefined,
  ): Promise<void> {
    const tenantId = row.tenant_id;
    const declared = { sha256: row.sha256, sizeBytes: Number(row.size_bytes) };
    const given = { signal: this.closing.signal, isPatient: true, credentials };
    const failure = await this.intake.fetch(tenantId, row.artifact_uri, declared, given).then(
      () => undefined,
      (error: unknown) => error,
    );
    if (this.closing.signal.aborted) return;
    await this.database.tenant(tenantId, async (tx) => {
      const found = await findPackage(tx, tenantId, row.package_id);
      if (!found) return;
      if (found.artifact_uri !== row.artifact_uri) {
        // It was created anew meanwhile, and its new address has not been asked.
      } else if (failure instanceof ArtifactError && failure.permanent) {
        await setPackageStatus(tx, tenantId, row.package_id, {
          status: 'rejected',
          rejection: 'ChecksumMismatch',
          message: failure.message,
        });
      } else if (failure !== undefined) {
        const isForPeople = failure instanceof ArtifactError || failure instanceof KelletError;
        if (!isForPeople) this.logger.warn({ err: failure, package: row.name }, 'artifact could not be stored');
        await noteFetchFailure(tx, tenantId, row.package_id, isForPeople ? failure.message : 'internal error');
      } else {
        await judgePackage(tx, tenantId, row.package_id);
      }
      await notifyChanged(tx, 'OtaPackage', tenantId, meta.namespace, row.name);
    });
  }
}

const observedOf = (row: PackageRow): Observed => ({
  status: row.status,
  checksumVerified: row.checksum_verified,
  signatureVerified: isSigned(row),
  message: inManifest('OtaPackage', row.message),
  sizeBytes: Number(row.size_bytes),
});

/** Returns why a package is rejected or its last fetch failed, for a condition. */
function refusalOf(row: PackageRow): Refusal | undefined {
  if (row.status === 'rejected') return { reason: row.rejection || 'ChecksumMismatch', message: row.message };
  return row.status === 'uploading' && row.message !== '' ? { reason: 'FetchFailed', message: row.message } : undefined;
}

/** Converts a row to the public resource. */
function toPackage(row: PackageRow): OtaPackage {
  return {
    packageId: row.package_id,
    name: row.display_name,
    type: OtaPackage_Type[row.type],
    version: row.version,
    artifactUri: row.artifact_uri,
    sha256: row.sha256.toString('hex'),
    signature: row.signature,
    sizeBytes: Number(row.size_bytes),
    compatibility: {
      deviceType: row.compatibility.device_type ?? '',
      minVersion: row.compatibility.min_version ?? '',
      maxVersion: row.compatibility.max_version ?? '',
      hardwareIdPattern: row.compatibility.hardware_id_pattern ?? '',
    },
    releaseNotes: row.release_notes,
    status: OtaPackage_Status[row.status],
    checksumVerified: row.checksum_verified,
    signatureVerified: isSigned(row),
    uploadedBytes: Number(row.checksum_verified ? row.size_bytes : row.received_bytes),
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
  };
}
