// `make trial-images`: writes the images of the servers that the chart brings for trials into dist/.
import { join } from 'node:path';
import { checkout } from '../stack/paths.ts';
import { trialImages, writeTrialImages } from './images.ts';

const files = await writeTrialImages(join(checkout, 'dist'), (line) => console.error(line));
console.log([...files, ...Object.values(trialImages)].join('\n'));
