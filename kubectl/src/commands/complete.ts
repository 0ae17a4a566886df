// __complete: prints completions for the cursor position. Called by the completion scripts and kubectl. Never fails or
// blocks.
import type { Kind } from '@kellet/crds';
import { customResources, namespaces, type Resource } from '@kellet/kubernetes';
import { Cluster } from '../cluster.ts';
import { candidates, completionText, directives } from '../completion.ts';
import { kindWords, shownKinds } from './status-target.ts';

const timeoutMilliseconds = 2000;

/** Returns the value of an option given before the cursor. */
function given(words: readonly string[], ...names: readonly string[]): string | undefined {
  for (const [index, word] of words.entries()) {
    if (names.includes(word)) return words[index + 1];
    const inline = names.find((name) => name.startsWith('--') && word.startsWith(`${name}=`));
    if (inline !== undefined) return word.slice(inline.length + 1);
  }
  return undefined;
}

/** Returns the completions for these words, the last of which is incomplete. */
export async function complete(words: readonly string[]): Promise<string> {
  const current = words.at(-1) ?? '';
  const { words: known, lookup } = candidates(words);
  if (lookup === undefined) return completionText(known, current, directives.nothingElse);
  if (lookup === 'files') return completionText([], current, directives.files);
  let names: readonly string[] = [];
  try {
    const cluster = Cluster.open({
      kubeconfig: given(words.slice(0, -1), '--kubeconfig'),
      context: given(words.slice(0, -1), '--context'),
      namespace: given(words.slice(0, -1), '-n', '--namespace'),
      timeoutMilliseconds,
    });
    names = await lookUp(cluster, lookup, current);
  } catch {
    // An unreachable cluster or invalid kubeconfig is reported when the command itself runs.
  }
  return completionText(names, current, directives.nothingElse);
}

async function lookUp(cluster: Cluster, lookup: string, current: string): Promise<readonly string[]> {
  const namesOf = async (resource: Resource) =>
    (await cluster.list(resource)).items.map(({ metadata }) => metadata.name);
  const names = (kind: Kind) => namesOf(customResources[kind]);
  if (lookup === 'contexts') return cluster.config.getContexts().map(({ name }) => name);
  if (lookup === 'namespaces') return namesOf(namespaces);
  if (lookup === 'rollouts') return names('OtaRollout');
  if (lookup === 'packages') return names('OtaPackage');
  const [word, slash] = current.split(/(\/)/);
  if (slash === undefined)
    return ['all', ...shownKinds.map((kind) => kindWords[kind][0]!), ...(await names('OtaRollout'))];
  const kind = shownKinds.find((shown) => kindWords[shown].includes(word!));
  return kind ? (await names(kind)).map((name) => `${word}/${name}`) : [];
}
