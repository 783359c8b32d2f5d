// The page's reactions to its controls. The engine is Local (this page's workers) or Remote (the service); both have the
// same interface.

import { closeCamera, onCameraLost, openCamera, readPicture } from "./camera.js";
import { reader } from "./loading.js";
import { Local } from "./local.js";
import { People } from "./people.js";
import { Refused } from "./refused.js";
import { Remote } from "./remote.js";
import { Running } from "./running.js";
import { View } from "./view.js";

const BASE = new URL("./", document.baseURI).href;
const view = new View(document);
const people = new People();
const at = (id) => view.at(id);

let page; // the content of page.json
let engine; // Local or Remote, open
let models; // descriptions of the engine's models
let running;
let filming = 0; // the number of the camera session; 0 while it is off
let turns = 0; // the number of the last picture or camera session
let last = null; // the last result
let found = []; // its similarities to the enrolled people

async function begin() {
  page = await reader(BASE).json("page.json");
  running = new Running(page.settings.running);
  at("where").hidden = !page.service;
  if (!page.runtime) {
    at("here").disabled = true;
    at("there").checked = true;
  }
  promise();
  askForKey(page.service?.keys);
  if (page.service?.keys) view.state("refused", "Enter a key of the service to begin.");
  else await open();
}

/** Show the input for the service's key, or hide it and move the focus to the camera button. */
function askForKey(wanted) {
  const within = at("service").contains(document.activeElement);
  at("service").hidden = !wanted;
  if (within && !wanted) at("camera").focus();
}

function isRemote() {
  return Boolean(page.service) && at("there").checked;
}

/** Say where pictures go. */
function promise() {
  at("promise").textContent = isRemote()
    ? "Pictures are sent to the service that delivered this page, which does not store them."
    : "Pictures are checked in this page and are not sent anywhere.";
}

async function open() {
  stop();
  engine?.close();
  const remote = isRemote();
  view.enable(false, { recognises: false });
  if (!remote && !page.runtime) throw new Refused("runtime", "The browser's runtime is missing; run fedvisage web fetch.");
  if (!remote && !globalThis.crypto?.subtle) throw new Refused("insecure", "This page must be opened from https or localhost.");
  view.state("working", remote ? "Contacting the service…" : "Loading the models…");
  promise();
  engine = remote ? new Remote() : new Local();
  models = await engine.open(page, BASE, at("key").value.trim());
  if (!people.size || models.recognition?.digest !== people.digest) forget();
  view.models(models, page, remote);
  view.enable(true, { recognises: Boolean(models.recognition) });
  askForKey(false);
  view.state("ready", "Ready: start the camera or choose a picture.");
}

function forget() {
  people.names().forEach((name) => people.remove(name));
  people.digest = models.recognition?.digest;
  show();
}

async function startOrStop() {
  if (filming) return stop();
  const video = at("video");
  view.state("working", "Waiting for the camera…");
  await openCamera(video);
  onCameraLost(video, (refused) => (stop(), told(refused)));
  running.forget();
  forgetResult();
  view.filming(true);
  view.state("ready", "The camera is on.");
  filming = turns;
  film(video, filming);
}

function stop() {
  forgetResult();
  if (!filming) return;
  filming = 0;
  closeCamera(at("video"));
  view.filming(false);
  view.state("ready", "The camera is off.");
}

/** Remove the last result, so that it is neither shown beside another picture nor enrolled. */
function forgetResult() {
  turns += 1; // a check that still runs is out of date
  [last, found] = [null, []];
  view.clear();
  show();
}

/** Check the newest frame whenever a worker is free; results are shown in the order of the frames. */
async function film(video, turn) {
  const [times, coming] = [[], []];
  let grabbed = Promise.resolve();
  try {
    while (filming === turn) {
      while (coming.length < engine.lanes) {
        grabbed = grabbed.then(() => newFrame(video));
        coming.push(grabbed.then(look));
      }
      const { checked, width, height } = await coming.shift();
      if (filming !== turn) return;
      judged(checked, running.add(checked), width, height);
      times.push(performance.now());
      if (times.length > 20) times.shift();
      view.speed(rate(times, checked.milliseconds));
    }
  } catch (error) {
    if (filming !== turn) return; // a frame of an earlier session
    stop();
    told(error);
  } finally {
    coming.forEach((frame) => frame.catch(() => {})); // their results are no longer needed
  }
}

/** Wait for the next frame. */
async function newFrame(video) {
  if (video.requestVideoFrameCallback) await new Promise((resolve) => video.requestVideoFrameCallback(resolve));
  return createImageBitmap(video);
}

async function look(frame) {
  const { width, height } = frame;
  return { checked: await engine.check(frame, { embed: people.size > 0 }), width, height };
}

function rate(times, milliseconds) {
  const seconds = (times.at(-1) - times[0]) / 1000;
  const duration = `${milliseconds.toFixed(0)} ms a frame`;
  return times.length < 2 ? duration : `${((times.length - 1) / seconds).toFixed(1)} frames a second, ${duration}`;
}

async function choose() {
  const [file] = at("file").files;
  if (!file) return;
  at("file").value = ""; // the same file can be chosen again
  stop();
  const turn = turns;
  view.state("working", "Checking the picture…");
  const picture = await readPicture(file);
  if (turn !== turns) return;
  const { width, height } = picture;
  view.picture(picture);
  const checked = await engine.check(picture, { embed: true });
  if (turn !== turns) return; // another picture or the camera was chosen
  judged(checked, checked.faces[0]?.pad ?? null, width, height);
  view.speed(`${checked.milliseconds.toFixed(0)} ms`);
  view.state("ready", `${file.name} was checked.`);
}

function judged(checked, verdict, width, height) {
  last = { checked, verdict };
  view.boxes(checked.faces, width, height);
  view.decision(checked, verdict);
  const embedding = checked.faces[0]?.embedding;
  found = embedding ? people.compare(embedding, models.recognition.threshold.value) : [];
  show();
}

function show() {
  view.enrolled(people.names(), found, (name) => {
    people.remove(name);
    found = found.filter((person) => person.name !== name);
    show();
  });
  const [best] = found;
  view.matched(best ? (best.match ? `This is ${best.name}.` : "This person is not enrolled.") : "");
}

async function enrol() {
  const name = at("name").value.trim();
  if (!name) throw new Refused("name", "Enter a name first.");
  const embedding = await embeddingNow();
  people.enrol(name, embedding);
  at("name").value = "";
  found = people.compare(embedding, models.recognition.threshold.value);
  show();
  view.state("ready", `${name} is enrolled in this page.`);
}

/** Return the embedding of the present face, which must be living; with the camera on, the running mean decides. */
async function embeddingNow() {
  const living = () => last?.verdict?.decision === "bona_fide";
  let checked = last?.checked;
  if (filming && living()) {
    checked = await engine.check(await createImageBitmap(at("video")), { embed: true });
  }
  const embedding = living() ? checked.faces[0]?.embedding : null;
  if (!embedding) throw new Refused("no_face", "There is no living face to enrol; show one face alone, close and sharp.");
  return embedding;
}

function told(error) {
  if (error instanceof Refused && error.code === "unauthorised") askForKey(true);
  view.state("refused", error instanceof Refused ? error.message : `This is a bug in the page: ${error.message ?? error}`);
}

const trying = (action) => (event) => {
  event?.preventDefault?.();
  return action().catch(told);
};

at("camera").onclick = trying(startOrStop);
at("file").onchange = trying(choose);
at("enrol").onsubmit = trying(enrol);
at("service").onsubmit = trying(open);
for (const id of ["here", "there"]) at(id).onchange = trying(open);
addEventListener("pagehide", () => closeCamera(at("video")));
navigator.serviceWorker?.register(new URL("offline.js", BASE)).catch(() => {}); // the page also works without it
begin().catch(told);
