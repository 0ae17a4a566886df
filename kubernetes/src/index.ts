// Client of the Kubernetes API, shared by the operator, the data plane, the kubectl plugin and the development stack.
export * from './client.ts';
export * from './errors.ts';
export * from './json-lines.ts';
export * from './resource.ts';
