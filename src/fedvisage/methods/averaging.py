"""The building blocks of averaging methods, importable from their documented path; see ``algorithms/fedavg.py``."""

from fedvisage.methods.algorithms.fedavg import MOMENTS as MOMENTS
from fedvisage.methods.algorithms.fedavg import PAPER as PAPER
from fedvisage.methods.algorithms.fedavg import STARTED as STARTED
from fedvisage.methods.algorithms.fedavg import AveragingOptions as AveragingOptions
from fedvisage.methods.algorithms.fedavg import OnModel as OnModel
from fedvisage.methods.algorithms.fedavg import Turn as Turn
from fedvisage.methods.algorithms.fedavg import apply_server_step as apply_server_step
from fedvisage.methods.algorithms.fedavg import local_training as local_training
from fedvisage.methods.algorithms.fedavg import on_model as on_model
from fedvisage.methods.algorithms.fedavg import options_on as options_on
from fedvisage.methods.algorithms.fedavg import server as server
from fedvisage.methods.algorithms.fedavg import started_from as started_from
from fedvisage.methods.algorithms.fedavg import titled as titled
from fedvisage.methods.algorithms.fedavg import trained_tensors as trained_tensors
from fedvisage.methods.algorithms.fedavg import training_call as training_call
from fedvisage.methods.algorithms.fedavg import uploads_of as uploads_of
from fedvisage.methods.algorithms.fedavg import weight_of as weight_of
from fedvisage.methods.algorithms.fedavg import with_proximal_term as with_proximal_term
