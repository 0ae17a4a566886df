// The part of Kubernetes' ObjectMeta that Kellet reads and writes. Times are RFC 3339 strings, as on the wire.

/** Reference to the owner of an object. The object is garbage-collected after its owner. */
export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

/** An entry of metadata.managedFields: which fields a manager owns, and through which operation. */
export interface ManagedFields {
  manager?: string;
  operation?: 'Apply' | 'Update';
  subresource?: string;
  /** A tree of `f:<field>` keys. */
  fieldsV1?: Record<string, unknown>;
}

/** Standard object metadata as returned by the API server. */
export interface ObjectMeta {
  name: string;
  /** Absent on cluster-scoped objects. */
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  /** Incremented by the API server with each change of spec. */
  generation?: number;
  creationTimestamp?: string;
  /** Set once deletion has been requested; the object is deleted when its finalizers are removed. */
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
  managedFields?: ManagedFields[];
}
