// The lowest layer of the image: what Node needs from Debian, unpacked without running the packages' scripts. There is no
// shell, no package manager and no user but root and nonroot.
import { execFileSync } from 'node:child_process';
import {
  chmodSync,
  existsSync,
  globSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import type { Architecture } from './architecture.ts';

const packages = ['base-files', 'ca-certificates', 'libc6', 'libgcc-s1', 'libstdc++6', 'netbase', 'tzdata'];

/** User and group id of the image's programs. */
export const user = 65532;

/** A Debian package in the layer. */
export interface DebianPackage {
  name: string;
  version: string;
}

/**
 * Unpacks the packages into `folder`. `work` keeps this build's own package lists, so that the machine's architecture and
 * settings do not matter; it only needs apt and its sources. `others` are further packages.
 */
export function unpackBase(
  architecture: Architecture,
  folder: string,
  work: string,
  others: readonly string[] = [],
): DebianPackage[] {
  if (!existsSync('/etc/apt'))
    throw new Error(
      'the image is built from Debian packages, which need apt: build it with packaging/Dockerfile instead',
    );
  const archives = join(work, 'archives');
  for (const path of [archives, join(work, 'lists/partial'), join(work, 'cache')]) mkdirSync(path, { recursive: true });
  writeFileSync(join(work, 'status'), '');
  const settings = {
    'APT::Architecture': architecture,
    'APT::Architectures': architecture,
    // The user of downloads may not enter this folder.
    'APT::Sandbox::User': 'root',
    'Dir::State': work,
    'Dir::State::lists': join(work, 'lists'),
    'Dir::State::status': join(work, 'status'),
    'Dir::Cache': join(work, 'cache'),
    'Acquire::Languages': 'none',
  };
  const options = Object.entries(settings).flatMap(([name, value]) => ['-o', `${name}=${value}`]);
  const apt = (...args: string[]): string =>
    execFileSync('apt-get', [...options, '-qq', ...args], {
      cwd: archives,
      encoding: 'utf8',
      stdio: ['ignore', 'pipe', 'pipe'],
    });
  apt('update');
  apt('download', ...packages, ...others);

  const found = globSync('*.deb', { cwd: archives }).toSorted();
  const unpacked = found.map((file): DebianPackage => {
    const path = join(archives, file);
    execFileSync('dpkg-deb', ['--extract', path, folder], { stdio: ['ignore', 'ignore', 'inherit'] });
    const field = (name: string): string =>
      execFileSync('dpkg-deb', ['--field', path, name], { encoding: 'utf8' }).trim();
    return { name: field('Package'), version: field('Version') };
  });
  for (const unneeded of [
    'usr/share/doc',
    'usr/share/man',
    'usr/share/locale',
    'usr/share/lintian',
    'usr/share/bug',
    'usr/sbin',
    'var/lock',
    'var/tmp',
  ])
    rmSync(join(folder, unneeded), { recursive: true, force: true });
  denyWriting(folder);
  writeUsers(folder);
  writeCertificates(folder);
  symlinkSync('/usr/share/zoneinfo/Etc/UTC', join(folder, 'etc/localtime'));
  return unpacked;
}

/** Leaves only the owner the right to write, and removes the set-user-id and set-group-id bits. */
function denyWriting(folder: string): void {
  for (const path of globSync('**/*', { cwd: folder })) {
    const found = lstatSync(join(folder, path));
    if (!found.isSymbolicLink()) chmodSync(join(folder, path), found.mode & 0o755);
  }
}

function writeUsers(folder: string): void {
  mkdirSync(join(folder, 'tmp'), { recursive: true });
  chmodSync(join(folder, 'tmp'), 0o1777);
  const noLogin = '/nonexistent';
  writeFileSync(
    join(folder, 'etc/passwd'),
    `root:x:0:0:root:/root:${noLogin}\nnonroot:x:${user}:${user}:nonroot:/tmp:${noLogin}\n`,
  );
  writeFileSync(join(folder, 'etc/group'), `root:x:0:\nnonroot:x:${user}:\n`);
}

/** Does what the script of ca-certificates would do. */
function writeCertificates(folder: string): void {
  const source = join(folder, 'usr/share/ca-certificates');
  const certificates = globSync('**/*.crt', { cwd: source }).toSorted();
  mkdirSync(join(folder, 'etc/ssl/certs'), { recursive: true });
  const target = join(folder, 'etc/ssl/certs/ca-certificates.crt');
  rmSync(target, { force: true });
  writeFileSync(target, certificates.map((file) => readFileSync(join(source, file), 'utf8')).join(''));
}
