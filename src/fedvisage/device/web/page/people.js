// Who was enrolled in this page: embeddings in its memory, gone when it is closed or loaded again.

export class People {
  constructor() {
    this.known = [];
  }

  get size() {
    return this.known.length;
  }

  /** Keep a face under a name; the same name again replaces it. */
  enrol(name, embedding) {
    this.remove(name);
    this.known.push({ name, embedding: Float32Array.from(embedding) });
  }

  remove(name) {
    this.known = this.known.filter((person) => person.name !== name);
  }

  names() {
    return this.known.map((person) => person.name);
  }

  /** Return everybody with their similarity to a face, the most similar first; the threshold counts as a match. */
  compare(embedding, threshold) {
    const alike = (other) => other.reduce((sum, value, index) => sum + value * embedding[index], 0);
    return this.known
      .map((person) => ({ name: person.name, similarity: alike(person.embedding) }))
      .map((found) => ({ ...found, match: found.similarity >= threshold }))
      .sort((one, other) => other.similarity - one.similarity);
  }
}
