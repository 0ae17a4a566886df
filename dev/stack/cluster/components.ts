// Components of a cluster beside the control plane: their credentials, and the scheduler.
import { join } from 'node:path';
import type { Supervisor } from '../processes/supervisor.ts';
import { type CertificateFiles, type CertificateRequest, openCertificateAuthority } from './certificates.ts';
import { writeKubeconfig } from './kubeconfig.ts';

/** The certificate of a component, and a kubeconfig with it. */
export interface ComponentCredential extends CertificateFiles {
  kubeconfig: string;
}

/**
 * Issues a certificate by the authority of the control plane in `folder` and writes a kubeconfig for its API server at
 * `server`.
 */
export async function issueCredential(
  folder: string,
  server: string,
  request: CertificateRequest,
): Promise<ComponentCredential> {
  const authority = await openCertificateAuthority(join(folder, 'pki'), 'kellet-local');
  const credential = await authority.issue(request);
  const kubeconfig = join(folder, `${request.name}.kubeconfig`);
  await writeKubeconfig(kubeconfig, { server, authority: authority.certificate, user: request.name, credential });
  return { ...credential, kubeconfig };
}

/** Starts the scheduler, which assigns pods to nodes, for the control plane in `folder`. */
export async function startScheduler(
  supervisor: Supervisor,
  program: string,
  folder: string,
  server: string,
): Promise<void> {
  const request = { name: 'kube-scheduler', commonName: 'system:kube-scheduler' };
  const { kubeconfig } = await issueCredential(folder, server, request);
  await supervisor.start({
    name: 'kube-scheduler',
    command: program,
    args: [`--kubeconfig=${kubeconfig}`, '--secure-port=0', '--leader-elect=false'],
    isReady: async () => true,
  });
}
