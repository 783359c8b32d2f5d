// What a person is told when something cannot be done: one line, what is wrong and how to mend it.

export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}
