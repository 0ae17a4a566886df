// A Git repository on this machine that a test writes and Argo CD reads.
import { execFile } from 'node:child_process';
import { mkdir, rm, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { stringify } from 'yaml';

const execute = promisify(execFile);

/** A repository with one branch, `main`. */
export class GitRepository {
  private readonly folder: string;

  private constructor(folder: string) {
    this.folder = folder;
  }

  /** Creates an empty repository in a folder, which is removed first. */
  static async create(folder: string): Promise<GitRepository> {
    await rm(folder, { recursive: true, force: true });
    await mkdir(folder, { recursive: true });
    const repository = new GitRepository(folder);
    await repository.git('init', '--quiet', '--initial-branch=main');
    return repository;
  }

  get url(): string {
    return `file://${this.folder}`;
  }

  /** Writes files, with the manifests in them, removes those without manifests, and commits. Returns the commit's hash. */
  async commit(message: string, files: Readonly<Record<string, readonly object[]>>): Promise<string> {
    for (const [name, manifests] of Object.entries(files)) {
      const path = join(this.folder, name);
      await mkdir(dirname(path), { recursive: true });
      if (manifests.length === 0) await rm(path);
      else await writeFile(path, manifests.map((manifest) => stringify(manifest)).join('---\n'));
    }
    return this.commitAll(message);
  }

  /** Commits a copy of a folder at the same path, with a tag. */
  async commitCopy(source: string, path: string, tag: string): Promise<void> {
    const target = join(this.folder, path);
    await mkdir(dirname(target), { recursive: true });
    await execute('cp', ['-r', source, target]);
    await this.commitAll(`Copy ${path}`);
    await this.git('tag', tag);
  }

  /** Reverts a commit. Returns the hash of the new one. */
  async revert(commit: string): Promise<string> {
    await this.git('revert', '--no-edit', commit);
    return this.head();
  }

  private async commitAll(message: string): Promise<string> {
    await this.git('add', '--all');
    await this.git('commit', '--quiet', '--message', message);
    return this.head();
  }

  private async head(): Promise<string> {
    return (await this.git('rev-parse', 'HEAD')).trim();
  }

  private async git(...args: string[]): Promise<string> {
    const settings = ['user.name=Test', 'user.email=test@kellet.test', 'commit.gpgsign=false'];
    const options = [...settings.flatMap((setting) => ['-c', setting]), '-C', this.folder];
    return (await execute('git', [...options, ...args])).stdout;
  }
}
