// Names that every part of Kellet shares when it speaks with Kubernetes.

/** API group of the custom resources. */
export const group = 'kellet.dev';
/** The one served version. */
export const version = 'v1alpha1';
/** `apiVersion` of every custom resource. */
export const apiVersion = `${group}/${version}`;

/** Plural of each kind, as it stands in API paths and RBAC rules. */
export const plurals = {
  DeviceProfile: 'deviceprofiles',
  ProvisioningTemplate: 'provisioningtemplates',
  OtaPackage: 'otapackages',
  OtaRollout: 'otarollouts',
  Tenant: 'tenants',
} as const;

/** A kind of custom resource. */
export type Kind = keyof typeof plurals;

/** Label of a namespace: the tenant that it belongs to. */
export const tenantLabel = 'kellet.dev/tenant';
/** Label of a resource: who made it; absent when it came from a manifest. */
export const createdByLabel = 'kellet.dev/created-by';
/** Value of {@link createdByLabel} on a resource made through REST or gRPC. */
export const createdByApi = 'api';
/** Annotation of a resource: the name as its maker wrote it, which metadata.name may not hold. */
export const displayNameAnnotation = 'kellet.dev/display-name';
/** Annotation of a resource made through REST or gRPC: the id of the creation that wrote it. */
export const intentAnnotation = 'kellet.dev/intent';
/** Annotation of a ProvisioningTemplate: a new value has the operator mint a new key. */
export const rotateKeyAnnotation = 'kellet.dev/rotate-key';
/** Annotation of a tenant's namespace: base URL of the REST API, for clients that know the cluster alone (kubectl-kellet). */
export const endpointAnnotation = 'kellet.dev/endpoint';
/** Annotation of a ProvisioningTemplate: the key that REST rotated to, sealed for the operator (sealed-key.ts). */
export const sealedKeyAnnotation = 'kellet.dev/sealed-key';
/** Finalizer that lets the operator take a resource out of the data plane before it goes. */
export const finalizer = 'kellet.dev/data-plane';

/** Field manager of the operator's server-side apply. */
export const operatorFieldManager = 'kellet-operator';
/** Field manager of the server-side apply behind REST and gRPC. */
export const apiFieldManager = 'kellet-api';

/** Data key of the Secret that holds a provision key. */
export const provisionKeyDataKey = 'provisionKey';

/** @returns the name of the Secret into which a template's provision key is minted */
export function provisionKeySecretName(templateName: string): string {
  return `${templateName}-provision-key`;
}

/** @returns the name of the namespace that the operator makes for a tenant */
export function tenantNamespaceName(tenantId: string): string {
  return `kellet-${tenantId}`;
}
