// Updates packages. Type, version and artifact are immutable; name, notes, compatibility and deprecation can change.
import { fromJson } from '@bufbuild/protobuf';
import {
  CompatibilitySchema,
  OtaPackage_Status,
  OtaPackage_Type,
  type UpdatePackageRequest,
} from '@kellet/proto/es/kellet/v1/ota_pb';
import { changedRequest, changeOf } from '../../../control/manifest-mapping.ts';
import type { Database } from '../../../platform/database/database.ts';
import { failedPrecondition, invalidArgument } from '../../../platform/errors.ts';
import type { OutboundGuard } from '../../../platform/outbound/outbound-guard.ts';
import { textField, updatedFields } from '../../../platform/requests/fields.ts';
import type { CallContext } from '../../../platform/rpc.ts';
import { nameTaken } from '../../../resources/resource-names.ts';
import type { ResourceWriter } from '../../../resources/resource-writer.ts';
import { announcePackage, findNamesake, getPackage, setPackageAvailability } from './package-store.ts';
import { packageProblem } from './package-validation.ts';

/**
 * Changes name, release notes, compatibility, or whether an available package is deprecated. Throws NOT_FOUND, ALREADY_EXISTS
 * for a name that is taken, and FAILED_PRECONDITION for the status of a package that is not usable or a field of another manager.
 */
export async function updatePackage(
  { database, writer, guard }: { database: Database; writer: ResourceWriter; guard: OutboundGuard },
  request: UpdatePackageRequest,
  context: CallContext,
): Promise<void> {
  const { tenantId } = context;
  const fields = updatedFields(request.updateMask, ['name', 'release_notes', 'compatibility', 'status']);
  const { available, deprecated } = OtaPackage_Status;
  if (fields.has('status') && request.status !== available && request.status !== deprecated) {
    throw invalidArgument('status must be available or deprecated');
  }
  const row = await database.read(tenantId, (tx) => getPackage(tx, tenantId, request.packageId));
  const mask = request.updateMask!;
  const wanted = changedRequest('OtaPackage', mask, request, {
    compatibility: fromJson(CompatibilitySchema, { ...row.compatibility }, { ignoreUnknownFields: true }),
  });
  const problem = packageProblem(
    {
      type: OtaPackage_Type[row.type],
      name: request.name ?? '',
      version: row.version,
      artifactUri: row.artifact_uri,
      sha256: row.sha256.toString('hex'),
      signature: row.signature,
      sizeBytes: Number(row.size_bytes),
      compatibility: wanted.compatibility,
      releaseNotes: request.releaseNotes ?? '',
    },
    guard,
  );
  if (problem) throw invalidArgument(problem);
  const name = fields.has('name')
    ? textField('name', request.name ?? '', { minimum: 1, maximum: 253 })
    : row.display_name;
  if (name !== row.display_name) {
    const namesake = await database.read(tenantId, (tx) => findNamesake(tx, tenantId, name));
    if (namesake) throw nameTaken('package', name, namesake.display_name);
  }
  if (fields.has('status') && row.status !== 'available' && row.status !== 'deprecated') {
    throw failedPrecondition(`the package is ${row.status}`);
  }
  const spec = changeOf('OtaPackage', mask, wanted);
  if (name !== row.display_name || spec.length > 0) {
    const displayName = name === row.display_name ? {} : { displayName: name };
    await writer.patch(context, { kind: 'OtaPackage', name: row.name, ...displayName, spec });
  }
  if (fields.has('status')) {
    const status = request.status === deprecated ? 'deprecated' : 'available';
    await database.tenant(tenantId, async (tx) => {
      if (await setPackageAvailability(tx, tenantId, row.package_id, status)) await announcePackage(tx, row);
    });
  }
}
