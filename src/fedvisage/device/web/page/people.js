// People enrolled in this page: embeddings in its memory, lost when it is closed or reloaded.

export class People {
  constructor() {
    this.known = [];
  }

  get size() {
    return this.known.length;
  }

  /** Store a face under a name; a second face under that name replaces it. */
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

  /** Return all people with their similarity to a face, highest first; a similarity at the threshold is a match. */
  compare(embedding, threshold) {
    const alike = (enrolled) => enrolled.reduce((sum, value, index) => sum + value * embedding[index], 0);
    return this.known
      .map((person) => ({ name: person.name, similarity: alike(person.embedding) }))
      .map((person) => ({ ...person, match: person.similarity >= threshold }))
      .sort((first, second) => second.similarity - first.similarity);
  }
}
