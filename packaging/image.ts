// Builds the container image without a container engine (`make image`): dist/kellet-image.tar, an OCI layout that
// containerd, kind and container engines load. It contains kellet-apiserver, kellet-operator and kellet-verify.
//
//   node packaging/image.ts [--architecture amd64|arm64|all] [--name REPOSITORY:TAG]   writes the image
//   node packaging/image.ts --root FOLDER                  writes its root file system only (packaging/Dockerfile)
import { execFileSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { copyDashboard, copyNode, copyPrograms, installDependencies } from './application.ts';
import { type Architecture, architectures, ownArchitecture } from './architecture.ts';
import { billOfMaterials, debianComponents, npmComponents, npmUrl } from './bill-of-materials.ts';
import { readManifest } from './compile.ts';
import { unpackBase, user } from './debian-base.ts';
import { type ImageSettings, type PlatformImage, writeImage } from './oci-image.ts';
import { dist, root } from './paths.ts';
import { startMilliseconds } from './start-time.ts';

const { version, license } = readManifest('apiserver');

/** A step of the build. Prints how long it took. */
async function step<T>(title: string, work: () => T | Promise<T>): Promise<T> {
  const started = performance.now();
  const result = await work();
  process.stderr.write(`  ${title.padEnd(44)} ${((performance.now() - started) / 1000).toFixed(1)} s\n`);
  return result;
}

/** Returns the output of git, or undefined outside a repository. */
function git(...args: string[]): string | undefined {
  try {
    return execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
  } catch {
    return undefined;
  }
}

/** Builds the layers of one architecture under `work`, lowest first. */
async function buildLayers(architecture: Architecture, work: string): Promise<string[]> {
  const layer = (name: string): string => {
    const folder = join(work, 'layers', name);
    mkdirSync(folder, { recursive: true });
    return folder;
  };
  const [base, node, dependencies, programs] = ['base', 'node', 'dependencies', 'programs'].map(layer) as [
    string,
    string,
    string,
    string,
  ];
  const title = (text: string): string => `${architecture}: ${text}`;
  const debian = await step(title('Debian packages'), () => unpackBase(architecture, base, join(work, 'debian')));
  const nodePackage = await step(title('dependencies'), () =>
    installDependencies(architecture, dependencies, join(work, 'npm')),
  );
  await step(title('Node.js'), () => copyNode(nodePackage, node));
  await step(title('programs'), () => copyPrograms(programs, join(work, 'compiled')));
  const bundled = await step(title('dashboard'), () => copyDashboard(programs));
  const nodeVersion = (readManifest('')['devDependencies'] as Record<string, string>)['node']!;
  const components = [
    ...debianComponents(debian, architecture),
    { type: 'application' as const, name: 'node', version: nodeVersion, purl: npmUrl('node', nodeVersion) },
    ...npmComponents(join(dependencies, 'app/node_modules')),
    // The dashboard contains these: they are not installed.
    ...npmComponents(join(root, 'node_modules')).filter(({ name }) => bundled.includes(name)),
  ];
  const bill = `${JSON.stringify(billOfMaterials(version, components), undefined, 2)}\n`;
  writeFileSync(join(programs, 'app/bill-of-materials.cdx.json'), bill);
  mkdirSync(dist, { recursive: true });
  writeFileSync(join(dist, `kellet-image-${architecture}.cdx.json`), bill);
  return [base, node, dependencies, programs];
}

function settings(): ImageSettings {
  const revision = git('rev-parse', 'HEAD');
  return {
    User: `${user}:${user}`,
    WorkingDir: '/tmp',
    Env: ['PATH=/usr/local/bin:/usr/bin:/bin', 'NODE_ENV=production', 'HOME=/tmp'],
    Cmd: ['kellet-apiserver', '--help'],
    Labels: {
      'org.opencontainers.image.title': 'kellet',
      'org.opencontainers.image.description': readManifest('').description ?? '',
      'org.opencontainers.image.licenses': String(license),
      'org.opencontainers.image.version': version,
      ...(revision && { 'org.opencontainers.image.revision': revision }),
    },
  };
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      architecture: { type: 'string', default: ownArchitecture },
      name: { type: 'string', default: `localhost/kellet:${version}` },
      output: { type: 'string', default: join(dist, 'kellet-image.tar') },
      root: { type: 'string' },
    },
  });
  const selected = architectures.filter((name) => values.architecture === 'all' || values.architecture === name);
  if (!selected.length) throw new Error(`unknown architecture ${values.architecture}: amd64, arm64 or all`);
  const work = mkdtempSync(join(tmpdir(), 'kellet-image-'));
  try {
    if (values.root) {
      const target = resolve(values.root);
      mkdirSync(target, { recursive: true });
      for (const layer of await buildLayers(selected[0]!, work)) execFileSync('cp', ['-a', `${layer}/.`, target]);
      return;
    }
    const images: PlatformImage[] = [];
    for (const architecture of selected) {
      const layers = await buildLayers(architecture, join(work, architecture));
      images.push({ architecture, layers, settings: settings() });
    }
    const created = new Date(Number(process.env['SOURCE_DATE_EPOCH'] ?? git('log', '-1', '--format=%ct') ?? 0) * 1000);
    const output = resolve(values.output);
    mkdirSync(dist, { recursive: true });
    const layout = join(work, 'layout');
    mkdirSync(layout);
    const digest = await step('image', () => writeImage(values.name, images, created.toISOString(), layout, output));
    const own = images.find(({ architecture }) => architecture === ownArchitecture);
    const milliseconds = own && startMilliseconds(own.layers, work);
    const start = milliseconds === undefined ? 'not measured' : `${milliseconds.toFixed(0)} ms`;
    process.stderr.write(`${values.name} ${digest}\n`);
    process.stderr.write(`  size ${(statSync(output).size / 1e6).toFixed(0)} MB, start-up time ${start}\n`);
    process.stdout.write(`${output}\n${digest}\n`);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

await main();
