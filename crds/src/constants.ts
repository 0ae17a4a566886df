// Kubernetes names shared by all parts of Kellet.

/** API group of the custom resources. */
export const group = 'kellet.dev';
/** The only served version. */
export const version = 'v1alpha1';
/** `apiVersion` of every custom resource. */
export const apiVersion = `${group}/${version}`;

/** Plural of each kind, as used in API paths and RBAC rules. */
export const plurals = {
  DeviceProfile: 'deviceprofiles',
  ProvisioningTemplate: 'provisioningtemplates',
  OtaPackage: 'otapackages',
  OtaRollout: 'otarollouts',
  Tenant: 'tenants',
} as const;

/** A kind of custom resource. */
export type Kind = keyof typeof plurals;

/** Label of a namespace: its tenant. */
export const tenantLabel = 'kellet.dev/tenant';
/** Label of a resource: who created it; absent if it came from a manifest. */
export const createdByLabel = 'kellet.dev/created-by';
/** Value of {@link createdByLabel} on a resource created through REST or gRPC. */
export const createdByApi = 'api';
/** Annotation of a resource: the original name given by its creator, which may be invalid as metadata.name. */
export const displayNameAnnotation = 'kellet.dev/display-name';
/** Annotation of a resource created through REST or gRPC: the id of the creation intent. */
export const intentAnnotation = 'kellet.dev/intent';
/** Annotation of a ProvisioningTemplate: a new value makes the operator generate a new key. */
export const rotateKeyAnnotation = 'kellet.dev/rotate-key';
/**
 * Annotation of a tenant's namespace: base URL of the REST API, for clients that only know the cluster
 * (kubectl-kellet).
 */
export const endpointAnnotation = 'kellet.dev/endpoint';
/**
 * Annotation of a ProvisioningTemplate: the new key after a rotation through REST, sealed for the operator
 * (sealed-key.ts).
 */
export const sealedKeyAnnotation = 'kellet.dev/sealed-key';
/** Finalizer that lets the operator remove a resource from the data plane before it is deleted. */
export const finalizer = 'kellet.dev/data-plane';

/** Field manager of the operator's server-side apply. */
export const operatorFieldManager = 'kellet-operator';
/** Field manager of the server-side apply behind REST and gRPC. */
export const apiFieldManager = 'kellet-api';

/** Data key of a Secret with a provision key. */
export const provisionKeyDataKey = 'provisionKey';

/** Returns the name of the Secret into which a template's provision key is generated. */
export function provisionKeySecretName(templateName: string): string {
  return `${templateName}-provision-key`;
}

/** Returns the name of the namespace that the operator creates for a tenant. */
export function tenantNamespaceName(tenantId: string): string {
  return `kellet-${tenantId}`;
}

/** Type of a Secret with the credentials of a private source of artifacts. Secrets of other types are never sent anywhere. */
export const artifactCredentialsType = 'kellet.dev/artifact-credentials';
