// A kubeconfig for tests of processes that require one but do not use the Kubernetes API.

/** Nothing listens at this address. */
export const absentCluster = JSON.stringify({
  apiVersion: 'v1',
  kind: 'Config',
  clusters: [{ name: 'none', cluster: { server: 'http://127.0.0.1:1' } }],
  users: [{ name: 'none', user: {} }],
  contexts: [{ name: 'none', context: { cluster: 'none', user: 'none' } }],
  'current-context': 'none',
});
