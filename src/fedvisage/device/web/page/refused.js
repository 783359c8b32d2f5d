// An error for the person at the page: one line with fault and remedy.

export class Refused extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}
