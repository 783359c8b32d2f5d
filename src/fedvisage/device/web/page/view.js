// The visible and spoken output: decision, score, reasons, boxes, and enrolled people. Colour is never the only signal.

const TITLES = { bona_fide: "Living face", attack: "Attack", no_decision: "No decision" };
const NOTES = { grey: "grey, like infrared: the model expects colour" };
const MARKS = { bona_fide: "✓", attack: "✕", no_decision: "?" };

export class View {
  constructor(root) {
    this.root = root;
    this.said = "";
  }

  at(id) {
    return this.root.getElementById(id);
  }

  /** Show the state of the page; `kind` is working, ready or refused. */
  state(kind, text) {
    const status = this.at("state");
    status.dataset.kind = kind;
    status.textContent = text;
  }

  enable(ready, { recognises }) {
    for (const id of ["camera", "file"]) this.at(id).disabled = !ready;
    this.at("people").hidden = !recognises;
  }

  filming(on) {
    this.at("camera").textContent = on ? "Stop the camera" : "Start the camera";
    this.at("camera").setAttribute("aria-pressed", String(on));
    this.at("video").hidden = !on;
    this.at("picture").hidden = on;
  }

  /** Show a picture from a file. */
  picture(bitmap) {
    const canvas = this.at("picture");
    [canvas.width, canvas.height] = [bitmap.width, bitmap.height];
    canvas.getContext("2d").drawImage(bitmap, 0, 0);
    this.at("stage").style.setProperty("--shape", `${bitmap.width} / ${bitmap.height}`);
  }

  /** Remove picture, boxes and decision. */
  clear() {
    Object.assign(this.at("picture"), { width: 640, height: 480 }); // empties it
    this.boxes([], 640, 480);
    this.at("verdict").dataset.decision = "none";
    this.at("mark").textContent = "";
    this.at("decision").textContent = this.said = "No decision yet";
    this.score(null);
    this.speed("");
  }

  /** Show the decision; its text changes, and is read aloud, only when the decision or its reasons change. */
  decision(checked, verdict) {
    const decision = verdict?.decision ?? checked.decision;
    const notes = (checked.faces[0]?.pad?.notes ?? []).map((note) => NOTES[note] ?? note);
    const reasons = checked.reasons.length ? `: ${checked.reasons.join(", ")}` : "";
    const text = `${TITLES[decision]}${reasons}${notes.length ? ` (${notes.join(", ")})` : ""}`;
    this.at("verdict").dataset.decision = decision;
    this.at("mark").textContent = MARKS[decision];
    if (text !== this.said) this.at("decision").textContent = text;
    this.said = text;
    this.score(verdict ?? checked.faces[0]?.pad);
  }

  score(verdict) {
    const hasScore = typeof verdict?.score === "number";
    const bar = this.at("bar");
    bar.style.setProperty("--score", hasScore ? verdict.score : 0);
    bar.style.setProperty("--threshold", verdict?.threshold ?? 0);
    bar.dataset.known = String(hasScore);
    const frames = verdict?.frames > 1 ? `, mean of ${verdict.frames} frames` : "";
    this.at("figures").textContent = verdict
      ? `Score ${hasScore ? verdict.score.toFixed(4) : "none"}${frames}; threshold ${verdict.threshold.toFixed(4)} (${verdict.operating_point})`
      : "";
    bar.setAttribute("aria-label", this.at("figures").textContent || "no score");
  }

  /** Draw the boxes of faces over a picture of this size. */
  boxes(faces, width, height) {
    const canvas = this.at("boxes");
    [canvas.width, canvas.height] = [width, height];
    this.at("stage").style.setProperty("--shape", `${width} / ${height}`);
    const context = canvas.getContext("2d");
    const line = Math.max(2, width / 200);
    faces.forEach(({ box, points, pad }) => {
      for (const [colour, wide] of [["#000", line * 2], ["#fff", line]]) {
        context.strokeStyle = colour;
        context.lineWidth = wide;
        context.setLineDash(pad?.decision === "bona_fide" ? [] : [line * 4, line * 3]);
        context.strokeRect(box.x, box.y, box.width, box.height);
      }
      context.fillStyle = "#fff";
      for (const [x, y] of points ?? []) context.fillRect(x - line, y - line, 2 * line, 2 * line);
    });
  }

  speed(text) {
    this.at("speed").textContent = text;
  }

  models({ pad, recognition }, page, remote) {
    const rows = [
      ["attack detection", pad ? pad.digest : "none"],
      ["recognition", recognition ? recognition.digest : "none"],
      ["detector", page.detector.sha256],
      ["computed", remote ? "at the service" : "in this page"],
      ["version", page.version],
    ];
    const list = this.at("models");
    list.replaceChildren(
      ...rows.flatMap(([name, value]) => [["dt", name], ["dd", value]]).map(([tag, text]) => this.element(tag, text)),
    );
  }

  /** Show the enrolled people, with similarities if a face was compared. */
  enrolled(names, found, remove) {
    const byName = new Map(found.map((person) => [person.name, person]));
    const rows = (found.length ? found.map((person) => person.name) : names).map((name) => {
      const item = this.element("li");
      const person = byName.get(name);
      const button = this.element("button", "Remove");
      button.setAttribute("aria-label", `Remove ${name}`);
      button.onclick = () => remove(name);
      item.append(this.element("strong", name), this.element("span", person ? likeness(person) : "not compared yet"), button);
      if (person?.match) item.dataset.match = "true";
      return item;
    });
    this.at("list").replaceChildren(...rows);
  }

  matched(text) {
    if (this.at("matched").textContent !== text) this.at("matched").textContent = text;
  }

  element(tag, text = "") {
    const node = this.root.createElement(tag);
    node.textContent = text;
    return node;
  }
}

function likeness({ similarity, match }) {
  return `${match ? "same person" : "another person"}, similarity ${similarity.toFixed(3)}`;
}
