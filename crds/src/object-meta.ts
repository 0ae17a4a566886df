// The part of Kubernetes' ObjectMeta that Kellet reads and writes. Times are RFC 3339 text, as on the wire.

/** Names the owner of an object, which is deleted after it. */
export interface OwnerReference {
  apiVersion: string;
  kind: string;
  name: string;
  uid: string;
  controller?: boolean;
  blockOwnerDeletion?: boolean;
}

/** Standard object metadata as the API server answers it. */
export interface ObjectMeta {
  name: string;
  /** Absent on cluster-scoped objects. */
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  /** Raised by the API server with each change of spec. */
  generation?: number;
  creationTimestamp?: string;
  /** Set once deletion was asked for; the object goes when its finalizers are released. */
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  finalizers?: string[];
  ownerReferences?: OwnerReference[];
}
