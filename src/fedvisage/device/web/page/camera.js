// Pictures from a camera or a file, with the browser's refusals as messages.

import { Refused } from "./refused.js";

const WANTED = { video: { width: { ideal: 640 }, height: { ideal: 480 }, facingMode: "user" }, audio: false };
const LARGEST = 64_000_000; // pixels
const SMALLEST = 16;

const WORDS = {
  NotAllowedError: "Access to the camera was denied. Allow it for this page in the browser's settings, or choose a picture.",
  NotFoundError: "No camera was found. Connect one, or choose a picture.",
  NotReadableError: "The camera is in use by another program. Close it, or choose a picture.",
  OverconstrainedError: "No camera has a format that this page can use. Choose a picture.",
};

export async function openCamera(video) {
  if (!navigator.mediaDevices?.getUserMedia) {
    throw new Refused("camera", "Browsers allow the camera only on pages from https or localhost. Open this page from there, or choose a picture.");
  }
  try {
    video.srcObject = await navigator.mediaDevices.getUserMedia(WANTED);
    await video.play();
  } catch (error) {
    closeCamera(video);
    throw new Refused("camera", WORDS[error.name] ?? `The camera cannot be used (${error.name}). Choose a picture.`);
  }
}

export function closeCamera(video) {
  for (const track of video.srcObject?.getTracks() ?? []) track.stop();
  video.srcObject = null;
}

/** Call `lost` with a message when the camera is disconnected during use. */
export function onCameraLost(video, lost) {
  for (const track of video.srcObject.getTracks()) {
    track.onended = () => lost(new Refused("camera", "The camera was disconnected. Start it again, or choose a picture."));
  }
}

/** Read a file upright, in its own colours. */
export async function readPicture(file) {
  let picture;
  try {
    picture = await createImageBitmap(file, { imageOrientation: "from-image", colorSpaceConversion: "none", premultiplyAlpha: "none" });
  } catch {
    throw new Refused("picture", `${file.name}: is not an image that this browser can read. Choose a JPEG, PNG or WebP.`);
  }
  const { width, height } = picture;
  if (width * height > LARGEST || Math.min(width, height) < SMALLEST) {
    picture.close();
    throw new Refused("picture", `${file.name}: has ${width}×${height} pixels; choose one with at least ${SMALLEST} a side and at most ${LARGEST / 1e6} million.`);
  }
  return picture;
}
