// Client of the Kubernetes API, shared by the operator, the data plane, the kubectl plugin and the development stack.
export { KubeConfig } from '@kubernetes/client-node';
export * from './client.ts';
export { loadKubeConfig } from './connection.ts';
export * from './errors.ts';
export * from './list-pages.ts';
export * from './resource.ts';
