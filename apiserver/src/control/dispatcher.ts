// Passes manifests to the applier of their kind. All changes of working copies go through it, whether they come from the
// operator or from REST.
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { displayNameAnnotation, type Kind } from '@kellet/crds';
import {
  type ApplyRequest,
  type ApplyResponse,
  ApplyResponseSchema,
  type ObjectMeta,
  type RemoveRequest,
  type RemoveResponse,
  RemoveResponseSchema,
} from '@kellet/proto/es/kellet/control/v1/control_pb.ts';
import type { Database } from '../platform/database/database.ts';
import { invalidArgument, KelletError } from '../platform/errors.ts';
import { isLonger } from '../platform/requests/fields.ts';
import { namespaceOf } from '../policies/tenant-reader.ts';
import { noteDeletion } from './applied-versions.ts';
import { type Applied, type Applier, type Appliers, type LastStep, type Refusal, RefusalError } from './applier.ts';
import { inManifest } from './field-names.ts';
import { intentState } from './intents.ts';
import { kindNames } from './kinds.ts';
import { digestOf } from './working-copies.ts';

/** Applies and removes working copies through the appliers that the services have registered. */
export class Dispatcher {
  private readonly database: Database;
  private readonly appliers: Partial<Appliers> = {};

  constructor(database: Database) {
    this.database = database;
  }

  /** Registers the applier of one kind. */
  addApplier<K extends Kind>(kind: K, applier: Appliers[K]): void {
    (this.appliers as { [P in K]?: Appliers[P] })[kind] = applier;
  }

  /**
   * Makes the working copy match the manifest (control.proto, Apply). `last` is the final step of the transaction that
   * writes it. Throws INVALID_ARGUMENT for an incomplete request, UNIMPLEMENTED for a kind without an applier in this
   * process, and ABORTED if a newer version of the resource has been applied (isOvertaken); other errors may be retried.
   */
  async apply(request: ApplyRequest, last?: LastStep): Promise<ApplyResponse> {
    const { meta, spec } = request;
    const kind = kindNames[request.kind];
    if (!meta || !kind || !spec) throw invalidArgument('meta, kind and spec are required');
    const refusal = displayNameProblem(meta) ?? (await this.foreign(meta, kind));
    if (refusal) return create(ApplyResponseSchema, { refusal });
    const applied = await refusable(kind, () => this.applier(kind).apply(meta, spec, request.dryRun ? undo : last));
    const observed = applied.observed && { case: caseOf(kind), value: applied.observed };
    return create(ApplyResponseSchema, {
      id: applied.id,
      refusal: applied.refusal,
      digest: applied.id === '' ? 0n : await this.digestOf(kind, meta.tenantId, applied.id),
      observed: observed as MessageInitShape<typeof ApplyResponseSchema>['observed'],
    });
  }

  /** Returns the digest of a working copy, or 0, which is never compared, if the database is unavailable. */
  private digestOf(kind: Kind, tenantId: string, id: string): Promise<bigint> {
    return digestOf(this.database, kind, tenantId, id).catch(() => 0n);
  }

  /** Removes the working copy of a deleted resource (control.proto, Remove). */
  async remove(request: RemoveRequest): Promise<RemoveResponse> {
    const kind = kindNames[request.kind];
    const { meta } = request;
    if (!meta || !kind) throw invalidArgument('meta and kind are required');
    // A resource in a namespace that is not the tenant's never had a working copy.
    if (await this.foreign(meta, kind, { removing: true })) return create(RemoveResponseSchema);
    const applier = this.applier(kind);
    if (!(await this.database.system((tx) => noteDeletion(tx, kind, meta)))) return create(RemoveResponseSchema);
    const { refusal } = await refusable(kind, async () => ({
      id: '',
      refusal: await applier.remove(meta, request.detach),
    }));
    return create(RemoveResponseSchema, { refusal });
  }

  /** Refuses unknown tenants, namespaces that are not the tenant's, and resources whose creation has been cancelled. */
  private foreign(meta: ObjectMeta, kind: Kind, options: { removing?: boolean } = {}): Promise<Refusal | undefined> {
    if (kind === 'Tenant') return Promise.resolve(undefined);
    return this.database.system(async (tx) => {
      const tenant = await namespaceOf(tx, meta.tenantId);
      if (!tenant || (tenant.deleted && !options.removing)) {
        return { reason: 'TenantUnknown', message: `there is no tenant ${JSON.stringify(meta.tenantId)}` };
      }
      if (tenant.namespace !== meta.namespace) {
        const message = `the namespace of tenant ${meta.tenantId} is ${tenant.namespace}, not ${meta.namespace}`;
        return { reason: 'TenantUnknown', message };
      }
      if (!options.removing && (await intentState(tx, meta.tenantId, meta.intentId)) === 'cancelled') {
        return { reason: 'IntentCancelled', message: 'the request that created this resource was cancelled' };
      }
      return undefined;
    });
  }

  private applier(kind: Kind): Applier<unknown, unknown> {
    const applier = this.appliers[kind];
    if (!applier) throw new KelletError('UNIMPLEMENTED', `this process does not apply resources of kind ${kind}`);
    return applier;
  }
}

/** Returns the name of a kind's field in ApplyResponse.observed. */
const caseOf = (kind: Kind): string => kind[0]!.toLowerCase() + kind.slice(1);

/** Longest name of any kind, that of a package. */
const longestDisplayName = 253;

/** Refuses an annotation that no API call could have made; the schema does not check annotations. */
function displayNameProblem({ displayName }: ObjectMeta): Refusal | undefined {
  if (!isLonger(displayName, longestDisplayName) && !displayName.includes('\0')) return undefined;
  const message = `the annotation ${displayNameAnnotation} must have at most ${longestDisplayName} characters without NUL`;
  return { reason: 'InvalidSpec', message };
}

/** Rolls back a dry run that was not refused. */
class DryRunEnd extends Error {}

const undo: LastStep = () => Promise.reject(new DryRunEnd('end of the dry run'));

/** Returns an applier's result or its refusal, which names the fields of the manifest. */
async function refusable<Observed>(kind: Kind, run: () => Promise<Applied<Observed>>): Promise<Applied<Observed>> {
  const inNames = ({ reason, message }: Refusal): Refusal => ({ reason, message: inManifest(kind, message) });
  try {
    const applied = await run();
    return applied.refusal ? { ...applied, refusal: inNames(applied.refusal) } : applied;
  } catch (error) {
    if (error instanceof DryRunEnd) return { id: '' };
    if (!(error instanceof RefusalError)) throw error;
    return { id: '', refusal: inNames(error) };
  }
}
