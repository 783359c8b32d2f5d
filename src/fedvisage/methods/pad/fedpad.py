"""FedPAD: federated face presentation attack detection.

R. Shao, P. Perera, P. C. Yuen, V. M. Patel, "Federated Generalized Face Presentation Attack Detection", 2022, §III-A
and Algorithm 1. Data centres train a ResNet-18 on six channels (RGB and HSV) with binary cross-entropy (Eq. 1); after
some local epochs the server takes the uniform mean of all weights (Eq. 2, 3) and sends it back. Targets download the
result and only run inference.

Deviations from the paper: Eq. 1 is printed without its minus sign; it is minimised with it. The number of local epochs
(3) comes from the authors' later paper on test-time adaptation. BatchNorm statistics are averaged with the weights.
"""

from dataclasses import replace

from fedvisage.methods.algorithms.fedavg import fedavg
from fedvisage.methods.models import resnet18

PAPER = "Shao et al., Federated Generalized Face Presentation Attack Detection, 2022"

METHOD = replace(fedavg(resnet18.MODEL), name="fedpad", title="FedPAD", paper=PAPER, options=resnet18.Options)
TRAIN = METHOD.calls["train"]
